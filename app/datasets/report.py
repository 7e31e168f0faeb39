"""The report of bad rows: every one is counted, the first ones in the file's order are listed, no value is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_LISTED = 1000
_PRUNE_AT = 20 * MAX_LISTED


class ManifestErrorCode(StrEnum):
    """What can be wrong with a manifest; ``description`` is its documentation."""

    description: str

    def __new__(cls, value: str, description: str) -> ManifestErrorCode:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member

    # of the file
    NOT_UTF8 = "not_utf8", "The text is not UTF-8."
    MALFORMED_CSV = "malformed_csv", "Quotes do not match, or a line or a cell is too long to be meant."
    NOT_COMMA_SEPARATED = "not_comma_separated", "The header is one cell with semicolons or tabs: separate by commas."
    MALFORMED_PARQUET = "malformed_parquet", "The file starts like Parquet and cannot be read."
    EMPTY_MANIFEST = "empty_manifest", "There is no row."
    # of a column
    MISSING_COLUMN = "missing_column", "The header lacks this column."
    UNKNOWN_COLUMN = "unknown_column", "The column at this position is none of the documented ones, and no concept."
    DUPLICATE_COLUMN = "duplicate_column", "The header has this column twice."
    UNSUPPORTED_COLUMN_TYPE = "unsupported_column_type", "The Parquet type cannot hold what the column means."
    # of a row
    WRONG_CONCEPT_COUNT = "wrong_concept_count", "The row has more or fewer cells than the header."
    INVALID_KEY = "invalid_key", "A key has 1 to 200 characters, no control ones, no slash, no blank at its ends."
    DUPLICATE_KEY = "duplicate_key", "An earlier row has this key."
    UNKNOWN_SPLIT = "unknown_split", "A split is train, calibration or test."
    UNKNOWN_CLASS = "unknown_class", "The class is not in the definition."
    INVALID_SUBJECT = "invalid_subject", "A subject has up to 200 characters, no control ones, no blank at its ends."
    LABEL = "label_not_0_1_unknown", "A label is 0, 1, or unknown (empty, `unknown`, or null)."
    MISSING_IMAGE = "missing_image", "No file of this name came with the manifest."
    UNDECODABLE_IMAGE = "undecodable_image", "The file is not a complete PNG, JPEG, WebP or BMP image."
    OVERSIZED_IMAGE = "oversized_image", "The image has too many bytes or pixels."
    UNSUPPORTED_PIXELS = "unsupported_pixels", "The image has more than 8 bits a channel."
    # of the votes
    MALFORMED_VOTES = "malformed_votes", "The votes are not Parquet of the documented form, or lack a concept."
    MISSING_VOTES = "missing_votes", "The votes lack this row's key."
    UNKNOWN_VOTER = "unknown_voter", "The votes have a key that no row has, or a key twice."
    LABEL_NOT_VOTED = "label_not_voted", "The class's votes say otherwise; an empty cell says what they say."


@dataclass(frozen=True, order=True)
class _Finding:
    row: int  # 0: the file as a whole
    position: int  # of the column, for the order
    code: str
    column: str


class Report:
    """Collects findings in any order, in bounded memory."""

    def __init__(self) -> None:
        self.total = 0
        self._findings: list[_Finding] = []

    def add(
        self, code: ManifestErrorCode, *, row: int | None = None, column: str | None = None, position: int = 0
    ) -> None:
        """Args: ``row`` counts from 1; ``column`` is a name of the definition, never of the file."""
        self.total += 1
        self._findings.append(_Finding(row or 0, position, code.value, column or ""))
        if len(self._findings) >= _PRUNE_AT:
            self._findings = sorted(self._findings)[:MAX_LISTED]

    def listed(self) -> list[dict[str, Any]]:
        """The first findings in the order of rows, then columns."""
        listed = []
        for finding in sorted(self._findings)[:MAX_LISTED]:
            place: dict[str, Any] = {"row": finding.row or None, "column": finding.column or None, "code": finding.code}
            if finding.code == ManifestErrorCode.UNKNOWN_COLUMN:
                place["position"] = finding.position  # the name would repeat what was sent
            listed.append(place)
        return listed
