"""Requests for insights, and how they are shown."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from app.kit.schemas import AnswerBody, RequestBody, SampleKey, VersionNumber

MAX_TOP = 200


class InsightKind(StrEnum):
    """What can be asked about a version."""

    CONCEPT_IMPORTANCE = "concept_importance"
    INFLUENTIAL_LABELS = "influential_labels"
    SUSPECTED_LABELS = "suspected_labels"
    CHANGED_PREDICTIONS = "changed_predictions"


class InsightRequest(RequestBody):
    """Which insights to compute. ``sample`` is for ``influential_labels``, ``compared_with`` for
    ``changed_predictions``: the version's parent when absent."""

    kinds: list[Annotated[InsightKind, Field(strict=False)]] = Field(min_length=1, max_length=len(InsightKind))
    top: int = Field(20, ge=1, le=MAX_TOP, description="Entries of each list, at most.")
    sample: SampleKey | None = Field(None, description="Explain the concept loss of this row, not the held-out one.")
    compared_with: VersionNumber | None = None

    @field_validator("kinds")
    @classmethod
    def _each_once(cls, kinds: list[InsightKind]) -> list[InsightKind]:
        if len(set(kinds)) < len(kinds):
            raise PydanticCustomError("duplicate_kind", "Name each kind once.")
        return kinds


class InsightBody(AnswerBody):
    """One insight. Rows are told by their keys, as they are now; rows that are gone are left out and counted."""

    kind: InsightKind
    version: int
    job: UUID
    finished_at: datetime
    omitted_rows: int = Field(description="Entries about rows that the data set does not have any more.")
    result: dict[str, Any]


class InsightList(AnswerBody):
    insights: list[InsightBody]
