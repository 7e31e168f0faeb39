"""Every refusal, and the edges where there is none."""

from collections.abc import Mapping

import pytest
import torch

from worker.editing.bench import Step
from worker.editing.guard import (
    TRUST_RADIUS,
    EditRefused,
    refusal_of,
    require_classes,
    require_finite,
    require_gain,
    require_near,
    require_utility,
)

TOLERANCE = {"concept_f1": 0.02, "label_f1": 0.05}
BEFORE = {"concept_f1": 0.75, "label_f1": 0.5, "label_accuracy": 0.9}


@pytest.mark.parametrize(
    "after",
    [
        {"concept_f1": 0.75, "label_f1": 0.5},
        {"concept_f1": 0.9, "label_f1": 0.9},
        {"concept_f1": 0.74, "label_f1": 0.46},
        {"concept_f1": 0.75, "label_f1": 0.5, "label_accuracy": 0.0},
    ],
    ids=["the same", "better", "within", "accuracy has no tolerance"],
)
def test_utility_that_is_kept(after: Mapping[str, float]) -> None:
    require_utility(BEFORE, after, TOLERANCE)


def test_a_fall_of_the_tolerance_itself_is_allowed() -> None:
    """In numbers that are exact in binary; a tolerance of 0 allows no fall at all."""
    exact = {"concept_f1": 0.25}
    require_utility(BEFORE, {"concept_f1": 0.5}, exact)
    with pytest.raises(EditRefused):
        require_utility(BEFORE, {"concept_f1": 0.5 - 2**-30}, exact)
    require_utility(BEFORE, BEFORE, {"concept_f1": 0.0, "label_f1": 0.0})
    with pytest.raises(EditRefused):
        require_utility(BEFORE, {**BEFORE, "label_f1": 0.5 - 2**-30}, {"concept_f1": 0.0, "label_f1": 0.0})


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ({"concept_f1": 0.72, "label_f1": 0.5}, "concept_f1"),
        ({"concept_f1": 0.75, "label_f1": 0.4}, "label_f1"),
        ({"concept_f1": float("nan"), "label_f1": 0.5}, "concept_f1"),
        ({"concept_f1": 0.75, "label_f1": float("nan")}, "label_f1"),
    ],
)
def test_utility_that_fell_is_refused_by_name(after: Mapping[str, float], named: str) -> None:
    with pytest.raises(EditRefused, match=f"held-out {named} would fall") as refusal:
        require_utility(BEFORE, after, TOLERANCE)
    assert refusal.value.code == "utility_fell"
    assert refusal.value.detail == str(refusal.value)


def step(phase: str, before: float, after: float, level: float | None) -> Step:
    return Step(phase, 0.5, 1.0, 8, 0.1, "max_iterations", level, before, after)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([], id="no step was needed"),
        pytest.param([step("learn", 1.0, 0.5, 0.4)], id="learned"),
        pytest.param([step("learn", 1.0, 0.96, 0.4), step("learn", 0.96, 0.9, 0.4)], id="learned in two steps"),
        pytest.param([step("learn", 1.0, 1.0, 0.4), step("polish", 1.0, 0.5, 0.4)], id="learned by the polish"),
        pytest.param([step("forget", 0.2, 0.6, 0.7)], id="forgotten"),
        pytest.param([step("forget", 0.5, 0.5, 0.51)], id="there was nothing to speak of to forget"),
        pytest.param([step("drop", 1.0, 1.0, None)], id="plainly dropped"),
        pytest.param([step("learn", 0.0, 0.0, 0.0)], id="no loss at all"),
    ],
)
def test_what_counts_as_a_gain(steps: list[Step]) -> None:
    require_gain(steps)


@pytest.mark.parametrize(
    ("steps", "phase"),
    [
        ([step("learn", 1.0, 1.0, 0.4)], "learn"),
        ([step("learn", 1.0, 0.95, 0.4)], "learn"),
        ([step("forget", 0.2, 0.2, 0.7)], "forget"),
        ([step("learn", 1.0, 0.4, 0.4), step("forget", 0.2, 0.21, 0.7)], "forget"),
        ([step("forget", 0.2, 0.6, 0.7), step("forget", 0.6, 0.21, 0.7)], "forget"),
        ([step("withdraw", 0.2, 0.2, 0.7), step("forget", 0.2, 0.6, 0.7)], "withdraw"),
    ],
    ids=[
        "no step helped",
        "too little",
        "not forgotten",
        "learned and not forgotten",
        "gained and lost again",
        "labels not forgotten, rows were",
    ],
)
def test_an_edit_that_did_nothing_is_refused(steps: list[Step], phase: str) -> None:
    with pytest.raises(EditRefused, match=f"no step of the {phase} phase") as refusal:
        require_gain(steps)
    assert refusal.value.code == "nothing_gained"


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([step("learn", 1.0, 1.8, 0.4)], id="learning raised the loss"),
        pytest.param([step("forget", 0.5, 0.1, 0.7)], id="forgetting lowered it"),
        pytest.param([step("forget", 0.5, float("nan"), 0.7)], id="the loss is lost"),
    ],
)
def test_a_change_the_wrong_way_is_no_gain(steps: list[Step]) -> None:
    with pytest.raises(EditRefused, match="no step of the"):
        require_gain(steps)


def test_an_emptied_class_is_refused_by_name() -> None:
    before, after = torch.tensor([0, 1, 1, 2, 2]), torch.tensor([0, 2])
    with pytest.raises(EditRefused, match=r"left of: sparrow; retrain") as refusal:
        require_classes(before, after, ["wren", "sparrow", "gull", "owl"])
    assert refusal.value.code == "class_emptied"
    with pytest.raises(EditRefused, match=r"left of: wren, gull;"):
        require_classes(before, torch.tensor([1]), ["wren", "sparrow", "gull", "owl"])


def test_classes_that_were_empty_or_are_new_are_no_matter() -> None:
    """The owl had no rows before either."""
    require_classes(torch.tensor([0, 1]), torch.tensor([1, 0, 2]), ["wren", "sparrow", "gull", "owl"])


@pytest.mark.parametrize("relative_norm", [0.0, 0.3, TRUST_RADIUS])
def test_a_step_within_the_radius_is_trusted(relative_norm: float) -> None:
    require_near(relative_norm)


@pytest.mark.parametrize("relative_norm", [TRUST_RADIUS * 1.001, 6.7, float("inf"), float("nan")])
def test_a_longer_one_is_not(relative_norm: float) -> None:
    with pytest.raises(EditRefused, match=f"{relative_norm:.2f} of their norm, more than 0.75") as refusal:
        require_near(relative_norm)
    assert refusal.value.code == "step_too_long"


def test_what_is_no_number_is_refused() -> None:
    good = torch.tensor([1.0, 2.0])
    require_finite(good, torch.tensor([3]))
    for bad in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(EditRefused, match="not finite numbers") as refusal:
            require_finite(good, torch.tensor([1.0, bad]))
        assert refusal.value.code == "utility_fell"


def test_the_first_refusal_counts() -> None:
    assert refusal_of() is None
    assert refusal_of(lambda: require_near(0.1)) is None
    asked: list[str] = []
    found = refusal_of(lambda: require_near(0.1), lambda: require_near(2.0), lambda: asked.append("a third"))
    assert found is not None
    assert (found.code, asked) == ("step_too_long", [])
