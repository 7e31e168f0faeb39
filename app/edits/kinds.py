"""Kinds of jobs, and how the history calls them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from app.ledger.kinds import LedgerKind


class JobKind(StrEnum):
    """What a job does with a model."""

    TRAIN = "train"
    REGISTER = "register"
    FIT_FACTORS = "fit_factors"
    EDIT = "edit"
    RETRAIN = "retrain"
    PREVIEW = "preview"
    INSIGHT = "insight"
    RESTORE = "restore"


LEDGER_RESOURCE: Mapping[JobKind, str] = {
    JobKind.TRAIN: "training",
    JobKind.REGISTER: "registration",
    JobKind.FIT_FACTORS: "factors",
    JobKind.EDIT: "edit",
    JobKind.RETRAIN: "retraining",
    JobKind.PREVIEW: "preview",
    JobKind.INSIGHT: "insight",
    JobKind.RESTORE: "restoration",
}


def ledger_kind(kind: JobKind, action: str) -> LedgerKind:
    """The entry's kind for ``action``: accepted, started, succeeded, failed or cancelled."""
    return LedgerKind(f"{LEDGER_RESOURCE[kind]}.{action}")
