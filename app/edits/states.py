"""Life of a job: the one transition table."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """State of a job, and so of an edit."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: frozenset[tuple[JobState, JobState]] = frozenset(
    {
        (JobState.QUEUED, JobState.RUNNING),  # claimed
        (JobState.QUEUED, JobState.CANCELLED),
        (JobState.RUNNING, JobState.QUEUED),  # the lease was lost; another attempt follows
        (JobState.RUNNING, JobState.SUCCEEDED),
        (JobState.RUNNING, JobState.FAILED),
        (JobState.RUNNING, JobState.CANCELLED),
    }
)

FINAL: frozenset[JobState] = frozenset(set(JobState) - {before for before, _ in TRANSITIONS})


class IllegalTransition(Exception):
    """A change of state that is not in the table: a mistake of the program, never of a caller."""


def may_become(before: JobState, after: JobState) -> bool:
    """Whether ``before → after`` is in the table; staying is not a transition."""
    return (before, after) in TRANSITIONS


def require_transition(before: JobState, after: JobState) -> None:
    """Raises ``IllegalTransition`` unless ``before → after`` is in the table."""
    if not may_become(before, after):
        raise IllegalTransition(f"{before} → {after}")
