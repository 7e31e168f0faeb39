"""Bodies of upload routes."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from app.kit.schemas import AnswerBody


class UploadKind(StrEnum):
    """What a file is for."""

    IMAGE = "image"
    WEIGHTS = "weights"


class UploadBody(AnswerBody):
    """A file that waits to be used."""

    id: str
    kind: UploadKind
    filename: str | None = Field(description="As sent, to tell files of one request apart; it is not kept.")
    sha256: str
    bytes: int
    expires_at: datetime


class UploadList(AnswerBody):
    uploads: list[UploadBody]
