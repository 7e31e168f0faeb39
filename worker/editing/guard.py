"""What an edit must not do: cost more held-out quality than allowed, or pretend to have done something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from worker.editing.bench import Step


class EditRefused(Exception):
    """The edit ends without a version; ``code`` and the message are for the client."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def first_refusal(
    before: Mapping[str, Any], after: Mapping[str, Any], tolerance: Mapping[str, float], steps: list[Step]
) -> EditRefused | None:
    """Why an edit that was computed must not become a version, if there is a reason.

    Args:
        before: see :func:`require_utility`.
        steps: that had a goal to reach.
    """
    try:
        require_utility(before, after, tolerance)
        require_gain(steps)
    except EditRefused as refusal:
        return refusal
    return None


def require_utility(before: Mapping[str, Any], after: Mapping[str, Any], tolerance: Mapping[str, float]) -> None:
    """Refuse when a held-out F1 score fell by more than its tolerance.

    Args:
        before: ``{"concept_f1", "label_f1"}`` on the calibration split.
        tolerance: the largest fall of each.

    Raises:
        EditRefused: ``utility_fell``.
    """
    for name, allowed in tolerance.items():
        fall = before[name] - after[name]
        if not fall <= allowed:  # also when a score is not a number
            raise EditRefused("utility_fell", f"held-out {name} would fall by {fall:.4f}, more than {allowed:.4f}")


def require_gain(steps: list[Step]) -> None:
    """Refuse when rows should have changed their loss and did not, or changed it the wrong way.

    Raises:
        EditRefused: ``nothing_gained``.
    """
    for phase, kinds in (("learn", ("learn", "warm_pass")), ("withdraw", ("withdraw",)), ("forget", ("forget",))):
        taken = [step for step in steps if step.phase in kinds]
        if not taken or taken[0].level is None:
            continue
        start, gap = taken[0].loss_before, taken[0].level - taken[0].loss_before
        if abs(gap) > 0.05 * start and not (taken[-1].loss_after - start) / gap >= 0.1:  # also when not a number
            raise EditRefused("nothing_gained", f"no step of the {phase} phase brought the edited rows nearer")


def require_classes(classes_before: Tensor, classes_after: Tensor, names: list[str]) -> None:
    """Refuse to leave a class without training rows: one step cannot unlearn a whole class.

    Raises:
        EditRefused: ``class_emptied``.
    """
    emptied = sorted(set(classes_before.tolist()) - set(classes_after.tolist()))
    if emptied:
        labels = ", ".join(names[c] for c in emptied)
        raise EditRefused("class_emptied", f"no training rows would be left of: {labels}; retrain instead")
