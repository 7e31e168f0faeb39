"""What an edit must not do: cost more held-out quality than allowed, or pretend to have done something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from worker.editing.bench import Step

TRUST_RADIUS = 0.75
"""Of the weights' norm: as far as a linearisation is trusted.

Measured on the nets of the tests (three data sets of 120 rows): edits of all kinds, their lengths measured, change the
weights by at most 0.34 of their norm, removing 60% of the rows by 0.15–0.55, and held-out concept F1 falls by 0.03 at
most. The unmeasured full steps of the closed form change them by 0.8–6.7 and cost 0.2–0.7. A longer step is refused,
not shortened: its length is where the edited rows are as they should be, and half of it brings removed rows 42–48% of
the way and spares the held-out rows nothing.
"""


class EditRefused(Exception):
    """The edit ends without a version; ``code`` and the message are for the client."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def refusal_of(*requirements: Callable[[], None]) -> EditRefused | None:
    """The first refusal among the requirements, if there is one."""
    try:
        for require in requirements:
            require()
    except EditRefused as refusal:
        return refusal
    return None


def require_finite(*values: Tensor) -> None:
    """Refuse a model that is broken: weights, or what it says, that are not numbers.

    Raises:
        EditRefused: ``utility_fell``.
    """
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise EditRefused("utility_fell", "after the step the model's weights or losses are not finite numbers")


def require_near(relative_norm: float) -> None:
    """Refuse a change of the weights that is longer than :data:`TRUST_RADIUS`.

    Args:
        relative_norm: of the whole edit's change, over that of the weights before.

    Raises:
        EditRefused: ``step_too_long``.
    """
    if not relative_norm <= TRUST_RADIUS:  # also when not a number
        raise EditRefused(
            "step_too_long",
            f"the weights would change by {relative_norm:.2f} of their norm, more than {TRUST_RADIUS}; retrain instead",
        )


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
    for phase, kinds in (("learn", ("learn", "polish")), ("withdraw", ("withdraw",)), ("forget", ("forget",))):
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
