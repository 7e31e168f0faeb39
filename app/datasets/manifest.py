"""Reading manifests: CSV or Parquet in, checked columns and a report out. Pure: knows no database and no image.

Columns, in any order: ``key, split, class, image``, optionally ``subject``, and one per concept of the definition.
A label is ``0``, ``1``, or unknown: an empty cell or the word ``unknown``; in Parquet also null, and NaN in a column
of floating-point numbers, which is how dataframes write a missing number. The word ``nan`` is a mistake in both.
"""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.datasets.names import is_key, is_subject
from app.datasets.report import ManifestErrorCode as Code
from app.datasets.report import Report
from app.datasets.schemas import FIXED_COLUMNS, REQUIRED_COLUMNS, DatasetDefinition
from app.datasets.snapshots import SPLITS, UNKNOWN
from app.kit.problems import PAYLOAD_TOO_LARGE, Problem

_BATCH = 4096
_MAX_LINE = 4 << 20  # characters; 1,000 concepts and the longest names fit many times
_PARQUET = b"PAR1"
PARQUET_LIMIT = 64 << 20  # bytes of a footer
_BAD = 2
_TEXT_CODES = {"0": 0, "1": 1, "": UNKNOWN, "unknown": UNKNOWN}


@dataclass
class Manifest:
    """Checked rows, column by column; row ``i`` is row ``numbers[i]`` of the file.

    Meaningful as a whole only when the report is empty: a bad cell has a placeholder here.
    """

    concepts_k: int
    numbers: array[int] = field(default_factory=lambda: array("q"))
    keys: list[str] = field(default_factory=list)
    splits: array[int] = field(default_factory=lambda: array("b"))
    classes: array[int] = field(default_factory=lambda: array("i"))
    images: list[str] = field(default_factory=list)
    subjects: list[str | None] = field(default_factory=list)
    labels: list[NDArray[np.int8]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def concepts(self) -> NDArray[np.int8]:
        """Labels, shape ``(n, k)``: 0, 1 or ``UNKNOWN``."""
        return np.concatenate([np.empty((0, self.concepts_k), np.int8), *self.labels])


@dataclass(frozen=True)
class _Batch:
    numbers: list[int]
    texts: dict[str, list[str | None]]  # by fixed column
    labels: NDArray[np.int8]  # (rows, k), _BAD where the cell is no label


def read_manifest(file: IO[bytes], definition: DatasetDefinition, *, max_rows: int, report: Report) -> Manifest:
    """Reads and checks all rows, going on after bad ones so that ``report`` holds them all.

    Args:
        file: seekable, at its start. Its content decides whether it is Parquet.

    Raises:
        Problem: ``payload_too_large`` when there are more than ``max_rows`` rows.
    """
    parquet = file.read(len(_PARQUET)) == _PARQUET
    file.seek(0)
    checker = _Checker(definition, report)
    batches = _parquet_batches if parquet else _csv_batches
    for batch in batches(file, definition, max_rows, report):
        checker.check(batch)
    if not checker.manifest.numbers and not report.total:
        report.add(Code.EMPTY_MANIFEST)
    return checker.manifest


class _Checker:
    def __init__(self, definition: DatasetDefinition, report: Report) -> None:
        self.manifest = Manifest(len(definition.concepts))
        self._report = report
        self._concepts = definition.concepts
        self._classes = {name: index for index, name in enumerate(definition.classes)}
        self._splits = {name: index for index, name in enumerate(SPLITS)}
        self._keys: set[str] = set()

    def check(self, batch: _Batch) -> None:
        manifest, texts = self.manifest, batch.texts
        for row, key in zip(batch.numbers, texts["key"], strict=True):
            self._check_key(row, key)
        manifest.keys += [key or "" for key in texts["key"]]
        manifest.splits.extend(
            self._looked_up(batch.numbers, texts["split"], self._splits, "split", Code.UNKNOWN_SPLIT)
        )
        manifest.classes.extend(
            self._looked_up(batch.numbers, texts["class"], self._classes, "class", Code.UNKNOWN_CLASS)
        )
        for row, image in zip(batch.numbers, texts["image"], strict=True):
            if not image:
                self._add(Code.MISSING_IMAGE, row, "image")
        manifest.images += [image or "" for image in texts["image"]]
        subjects = [subject or None for subject in texts["subject"]]
        for row, subject in zip(batch.numbers, subjects, strict=True):
            if subject is not None and not is_subject(subject):
                self._add(Code.INVALID_SUBJECT, row, "subject")
        manifest.subjects += subjects
        for index, concept in np.argwhere(batch.labels == _BAD).tolist():
            self._report.add(
                Code.LABEL,
                row=batch.numbers[index],
                column=self._concepts[concept],
                position=len(FIXED_COLUMNS) + concept,
            )
        manifest.labels.append(np.where(batch.labels == _BAD, np.int8(UNKNOWN), batch.labels))
        manifest.numbers.extend(batch.numbers)

    def _check_key(self, row: int, key: str | None) -> None:
        if key is None or not is_key(key):
            self._add(Code.INVALID_KEY, row, "key")
        elif key in self._keys:
            self._add(Code.DUPLICATE_KEY, row, "key")
        else:
            self._keys.add(key)

    def _looked_up(
        self, rows: list[int], texts: list[str | None], indices: dict[str, int], column: str, code: Code
    ) -> list[int]:
        found = [indices.get(text or "", -1) for text in texts]
        for row, index in zip(rows, found, strict=True):
            if index < 0:
                self._add(code, row, column)
        return found

    def _add(self, code: Code, row: int, column: str) -> None:
        self._report.add(code, row=row, column=column, position=FIXED_COLUMNS.index(column))


def _positions(header: list[str], definition: DatasetDefinition, report: Report) -> dict[str, int] | None:
    """Where each column is; ``None`` after reporting what is wrong with the header."""
    known = {*FIXED_COLUMNS, *definition.concepts}
    before = report.total
    positions: dict[str, int] = {}
    for position, name in enumerate(header):
        if name not in known:
            report.add(Code.UNKNOWN_COLUMN, position=position + 1)
        elif name in positions:
            report.add(Code.DUPLICATE_COLUMN, column=name, position=position + 1)
        else:
            positions[name] = position
    for name in (*REQUIRED_COLUMNS, *definition.concepts):
        if name not in positions:
            report.add(Code.MISSING_COLUMN, column=name)
    return positions if report.total == before else None


def _too_many(max_rows: int) -> Problem:
    return Problem(PAYLOAD_TOO_LARGE, f"A manifest may have at most {max_rows} rows.")


# CSV


def _csv_batches(file: IO[bytes], definition: DatasetDefinition, max_rows: int, report: Report) -> Iterator[_Batch]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    rows = csv.reader(_lines(text), strict=True)
    row = 0
    try:
        header = next(rows, [])
        if not header:
            return
        if len(header) == 1 and any(separator in header[0] for separator in ";\t"):
            report.add(Code.NOT_COMMA_SEPARATED)
            return
        positions = _positions(header, definition, report)
        if positions is None:
            return
        concepts = [positions[name] for name in definition.concepts]
        numbers: list[int] = []
        cells: list[list[str]] = []
        for row, found in enumerate(rows, 1):
            if row > max_rows:
                raise _too_many(max_rows)
            if not found:  # a blank line; it counts, so that numbers agree with what an editor shows
                continue
            if len(found) != len(header):
                report.add(Code.WRONG_CONCEPT_COUNT, row=row)
                continue
            numbers.append(row)
            cells.append(found)
            if len(cells) == _BATCH:
                yield _csv_batch(numbers, cells, positions, concepts)
                numbers, cells = [], []
        yield _csv_batch(numbers, cells, positions, concepts)
    except UnicodeDecodeError:
        report.add(Code.NOT_UTF8)
    except csv.Error:
        report.add(Code.MALFORMED_CSV, row=row + 1)
    finally:
        text.detach()


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise csv.Error("a line is too long")
        yield line


def _csv_batch(numbers: list[int], cells: list[list[str]], positions: dict[str, int], concepts: list[int]) -> _Batch:
    texts: dict[str, list[str | None]] = {
        name: [row[positions[name]] for row in cells] if name in positions else [None] * len(cells)
        for name in FIXED_COLUMNS
    }
    labels = [[_TEXT_CODES.get(row[position], _BAD) for position in concepts] for row in cells]
    return _Batch(numbers, texts, np.array(labels, np.int8).reshape(len(cells), len(concepts)))


# Parquet


def _parquet_batches(file: IO[bytes], definition: DatasetDefinition, max_rows: int, report: Report) -> Iterator[_Batch]:
    try:
        parquet = pq.ParquetFile(
            file,
            pre_buffer=False,
            thrift_string_size_limit=PARQUET_LIMIT,
            thrift_container_size_limit=PARQUET_LIMIT // 64,
        )
        if parquet.metadata.num_rows > max_rows:
            raise _too_many(max_rows)
        schema = parquet.schema_arrow
        positions = _positions(list(schema.names), definition, report)
        if positions is None or not _types_fit(schema, positions, report):
            return
        number = 0
        for batch in parquet.iter_batches(batch_size=_BATCH, use_threads=False):
            numbers = list(range(number + 1, number + 1 + batch.num_rows))
            number += batch.num_rows
            if number > max_rows:
                raise _too_many(max_rows)
            yield _parquet_batch(numbers, batch, positions, definition.concepts)
    except UnicodeDecodeError:
        report.add(Code.NOT_UTF8)
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        report.add(Code.MALFORMED_PARQUET)


def _parquet_batch(numbers: list[int], batch: Any, positions: dict[str, int], concepts: list[str]) -> _Batch:
    rows = batch.num_rows
    texts: dict[str, list[str | None]] = {
        name: _mapped(batch.column(positions[name]), _text_of) if name in positions else [None] * rows
        for name in FIXED_COLUMNS
    }
    labels = np.empty((rows, len(concepts)), np.int8)
    for index, name in enumerate(concepts):
        labels[:, index] = _mapped(batch.column(positions[name]), _label_code)
    return _Batch(numbers, texts, labels)


def _mapped(column: Any, function: Callable[[Any], Any]) -> list[Any]:
    """``function`` of every cell, called once per distinct value: columns of labels have few."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    mapped = [function(value) for value in encoded.dictionary.to_pylist()]
    null = function(None)
    return [null if index is None else mapped[index] for index in encoded.indices.to_pylist()]


def _types_fit(schema: Any, positions: dict[str, int], report: Report) -> bool:
    before = report.total
    for name, position in positions.items():
        type_ = schema.field(position).type
        value_type = type_.value_type if pa.types.is_dictionary(type_) else type_
        fits = any(accepts(value_type) for accepts in (_TEXT_TYPES if name in FIXED_COLUMNS else _LABEL_TYPES))
        if not fits:
            report.add(Code.UNSUPPORTED_COLUMN_TYPE, column=name, position=position)
    return report.total == before


_TEXT_TYPES: Iterable[Callable[[Any], bool]] = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_null,
)
_LABEL_TYPES: Iterable[Callable[[Any], bool]] = (
    *_TEXT_TYPES,
    pa.types.is_boolean,
    pa.types.is_float32,
    pa.types.is_float64,
)


def _text_of(value: str | int | None) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _label_code(value: str | float | None) -> int:
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return _TEXT_CODES.get(value, _BAD)
    if math.isnan(value):
        return UNKNOWN
    return int(value) if value in (0, 1) else _BAD
