from __future__ import annotations

from itertools import product

import pytest

from app.edits.states import FINAL, IllegalTransition, JobState, may_become, require_transition

ALLOWED = {
    ("queued", "running"),
    ("queued", "cancelled"),
    ("running", "queued"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "cancelled"),
}


@pytest.mark.parametrize(("before", "after"), list(product(JobState, JobState)))
def test_every_pair(before: JobState, after: JobState) -> None:
    allowed = (before.value, after.value) in ALLOWED
    assert may_become(before, after) is allowed
    if allowed:
        require_transition(before, after)
    else:
        with pytest.raises(IllegalTransition):
            require_transition(before, after)


def test_final_states_are_left_by_nothing() -> None:
    assert {state.value for state in FINAL} == {"succeeded", "failed", "cancelled"}
