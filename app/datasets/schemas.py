"""Bodies of data set routes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from app.datasets.names import is_plain
from app.datasets.votes import MIN_CLASSES
from app.kit.schemas import AnswerBody, RequestBody, Slug, Title

FIXED_COLUMNS = ("key", "split", "class", "image", "subject")
REQUIRED_COLUMNS = ("key", "split", "class", "image")
MAX_NAME = 100


def _plain_name(name: str) -> str:
    if not is_plain(name, MAX_NAME):
        raise PydanticCustomError(
            "invalid_name", "A name has 1 to 100 characters, none of them control, no blank at either end."
        )
    return name


PlainName = Annotated[str, AfterValidator(_plain_name)]


class VoteRule(RequestBody):
    """How images of a class vote on its concept labels (Koh et al., "Concept Bottleneck Models", 2020).

    The rows of the split train vote; "absent" with the certainty "not visible" is no vote; a tie, also of no votes, is
    a 1. Every row of a class has the label that won.
    """

    rule: Literal["majority"]
    min_classes: int = Field(MIN_CLASSES, ge=0, le=10_000, description="Edits report concepts that fewer classes have.")


class DatasetDefinition(RequestBody):
    """What a manifest's cells mean."""

    id: Slug | None = Field(None, description="Made up when absent.")
    title: Title
    concepts: list[PlainName] = Field(min_length=1, max_length=1000, description="One manifest column each.")
    classes: list[PlainName] = Field(min_length=2, max_length=10_000, description="What the column `class` may say.")
    vote_rule: VoteRule | None = Field(None, description="Where classes vote on labels; then the part `votes` is sent.")

    @model_validator(mode="after")
    def _names_differ(self) -> DatasetDefinition:
        if len(set(self.concepts)) < len(self.concepts) or len(set(self.classes)) < len(self.classes):
            raise PydanticCustomError("repeated_name", "Names of concepts differ, and names of classes differ.")
        if not set(self.concepts).isdisjoint(FIXED_COLUMNS):
            raise PydanticCustomError(
                "reserved_name", "A concept cannot be called key, split, class, image or subject."
            )
        return self


class DatasetBody(AnswerBody):
    """A registered data set."""

    id: str
    title: str
    concepts: list[str]
    classes: list[str]
    counts: dict[str, int] = Field(description="Rows per split as registered.")
    vote_rule: VoteRule | None = Field(description="How classes vote on labels; null where rows have their own.")
    snapshot_sha256: str = Field(description="Digest of rows, splits and labels as registered.")
    created_at: datetime


class RegisteredDatasetBody(DatasetBody):
    """A data set just registered."""

    unreferenced_images: int = Field(description="Files that came with the manifest and that no row names; not kept.")


class DatasetList(AnswerBody):
    datasets: list[DatasetBody]
    next_page_token: str | None


class SampleBody(AnswerBody):
    """One row as registered. Edits of a model change its versions, not this."""

    key: str
    split: Literal["train", "calibration", "test"]
    class_: str = Field(serialization_alias="class")
    concepts: dict[str, int | None] = Field(description="0, 1, or null for unknown.")
    image_sha256: str
    votes: dict[str, int | None] | None = Field(
        description="How this row votes on its class's labels, null for no vote; null where rows have their own labels."
    )
    image_bytes: int
    has_subject: bool
    subject: str | None = Field(description="The subject's reference; shown to the roles compliance and admin only.")


class SampleList(AnswerBody):
    samples: list[SampleBody]
    next_page_token: str | None
