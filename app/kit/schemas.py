"""What bodies of requests and answers have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

SLUG_PATTERN = r"^[a-z][a-z0-9-]{0,62}$"

Slug = Annotated[str, StringConstraints(pattern=SLUG_PATTERN)]
Title = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]  # of a concept or a class
SampleKey = Annotated[str, StringConstraints(min_length=1, max_length=200)]
SubjectReference = Annotated[str, StringConstraints(min_length=1, max_length=200)]
VersionNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]


class RequestBody(BaseModel):
    """Strict: no coercion, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, validate_by_name=True)


class AnswerBody(BaseModel):
    """What the service says; built from rows, never from input."""

    model_config = ConfigDict(extra="forbid", frozen=True)
