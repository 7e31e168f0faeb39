"""What can be wrong with an edit that is well-formed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.kit.pointers import json_pointer


class Code(StrEnum):
    """Codes in `errors` of `invalid_edit`, and in the detail of an edit that failed as it no longer applies."""

    UNKNOWN_SAMPLE = "unknown_sample"
    SAMPLE_NOT_IN_VERSION = "sample_not_in_version"
    UNKNOWN_CONCEPT = "unknown_concept"
    UNKNOWN_CLASS = "unknown_class"
    UNKNOWN_SUBJECT = "unknown_subject"
    SUBJECT_WITHOUT_ROWS = "subject_without_rows"
    UNKNOWN_UPLOAD = "unknown_upload"
    CONTRADICTORY_FIX = "contradictory_fix"
    CONTRADICTORY_LABEL = "contradictory_label"
    CONCEPT_EXISTS = "concept_exists"
    CONCEPT_NOT_ADDED = "concept_not_added"
    CONCEPT_NOT_LEARNABLE = "concept_not_learnable"
    DUPLICATE_CONCEPT = "duplicate_concept"
    DUPLICATE_KEY = "duplicate_key"
    DUPLICATE_UPLOAD = "duplicate_upload"
    DROPS_EVERY_CONCEPT = "drops_every_concept"
    SPLIT_LEFT_EMPTY = "split_left_empty"
    TOO_MANY_ITEMS = "too_many_items"
    CHANGES_NOTHING = "changes_nothing"


MESSAGES: Mapping[Code, str] = {
    Code.UNKNOWN_SAMPLE: "No sample of the data set has this key.",
    Code.SAMPLE_NOT_IN_VERSION: "The version's data does not hold this sample: it was removed, or is not added yet.",
    Code.UNKNOWN_CONCEPT: "The version has no concept of this name.",
    Code.UNKNOWN_CLASS: "The version has no class of this name.",
    Code.UNKNOWN_SUBJECT: "No subject has this reference.",
    Code.SUBJECT_WITHOUT_ROWS: "The version's data holds no row of this subject.",
    Code.UNKNOWN_UPLOAD: "This is not an image upload of yours that waits to be used.",
    Code.CONTRADICTORY_FIX: "The same label is also fixed to another value.",
    Code.CONTRADICTORY_LABEL: "The same label is also given as another value.",
    Code.CONCEPT_EXISTS: "The version has a concept of this name; drop that one in an earlier edit to define it anew.",
    Code.CONCEPT_NOT_ADDED: "This operation adds no concept of this name.",
    Code.CONCEPT_NOT_LEARNABLE: "The train rows must have this concept's label 0 in at least one and 1 in another.",
    Code.DUPLICATE_CONCEPT: "This concept is dropped, or added, twice.",
    Code.DUPLICATE_KEY: "The data set has, or had, a sample with this key, or the request adds it twice.",
    Code.DUPLICATE_UPLOAD: "Another new sample uses this upload.",
    Code.DROPS_EVERY_CONCEPT: "None of the version's concepts would be left.",
    Code.SPLIT_LEFT_EMPTY: "No row of a split would be left.",
    Code.TOO_MANY_ITEMS: "The request names more labels, samples and concepts than one edit may.",
    Code.CHANGES_NOTHING: "The version's data already is as the request wants it.",
}


@dataclass(frozen=True)
class Finding:
    """One bad place of a request; ``pointer`` leads to it (RFC 6901)."""

    pointer: str
    code: Code

    def body(self) -> dict[str, str]:
        return {"pointer": self.pointer, "code": self.code.value, "message": MESSAGES[self.code]}


class Findings:
    """All bad places of one request."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def add(self, code: Code, *place: str | int) -> None:
        self.all.append(Finding(json_pointer(("operations", *place)), code))
