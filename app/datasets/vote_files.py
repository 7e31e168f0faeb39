"""Reading the votes that come with a manifest: Parquet in, one row of votes per row of the manifest out.

The form is the one that importers write: columns ``key`` (text) and ``votes`` (binary, one byte per attribute as in
``app.datasets.votes``), and metadata ``format`` and ``attributes`` (JSON), the attributes' names in the order of bytes.
"""

from __future__ import annotations

import json
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.datasets.manifest import PARQUET_LIMIT, Manifest
from app.datasets.report import ManifestErrorCode as Code
from app.datasets.report import Report
from app.datasets.schemas import FIXED_COLUMNS, DatasetDefinition
from app.datasets.snapshots import UNKNOWN
from app.datasets.votes import Votes, ballots, labels_by_vote

FORMAT = b"modelmend.votes.1"
_MOST_ATTRIBUTES = 10_000
_BYTES = np.array([0, *range(2, 10)], np.uint8)  # no annotation, or label + 2 * certainty


def read_votes(file: IO[bytes], definition: DatasetDefinition, manifest: Manifest, *, report: Report) -> Votes:
    """Votes on the definition's concepts, ``(rows of the manifest, k)``; what is wrong goes into the report.

    Args:
        file: seekable, at its start.
    """
    votes = np.zeros((len(manifest), len(definition.concepts)), np.uint8)
    try:
        columns, found = _read(file, definition.concepts, most=len(manifest))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError):
        report.add(Code.MALFORMED_VOTES)
        return votes
    row_of = {key: row for row, key in enumerate(manifest.keys)}
    missing = set(range(len(manifest)))
    for key, cells in found:
        row = row_of.get(key, -1)
        if row not in missing:
            report.add(Code.UNKNOWN_VOTER)
            continue
        missing.discard(row)
        votes[row] = np.frombuffer(cells, np.uint8)[columns]
    for row in sorted(missing):
        report.add(Code.MISSING_VOTES, row=manifest.numbers[row], column="key")
    return votes


def check_labels(definition: DatasetDefinition, manifest: Manifest, votes: Votes, report: Report) -> NDArray[np.int8]:
    """The labels by vote, ``(n, k)``; a label of the manifest that differs is reported."""
    splits, classes = np.array(manifest.splits, np.int8), np.array(manifest.classes, np.int64)
    labels = labels_by_vote(ballots(votes), classes, splits == 0)
    said = manifest.concepts
    for index, concept in np.argwhere((said != labels) & (said != UNKNOWN)).tolist():
        report.add(
            Code.LABEL_NOT_VOTED,
            row=manifest.numbers[index],
            column=definition.concepts[concept],
            position=len(FIXED_COLUMNS) + concept,
        )
    return labels


def _read(file: IO[bytes], concepts: list[str], *, most: int) -> tuple[list[int], list[tuple[str, bytes]]]:
    parquet = pq.ParquetFile(
        file, pre_buffer=False, thrift_string_size_limit=PARQUET_LIMIT, thrift_container_size_limit=PARQUET_LIMIT // 64
    )
    metadata: dict[bytes, bytes] = parquet.schema_arrow.metadata or {}
    if metadata.get(b"format") != FORMAT or parquet.metadata.num_rows > 2 * most:
        raise ValueError("another form, or far more rows than the manifest")
    attributes: Any = json.loads(metadata[b"attributes"])
    if not isinstance(attributes, list) or len(attributes) > _MOST_ATTRIBUTES:
        raise ValueError("no list of attributes")
    columns = [attributes.index(name) for name in concepts]
    found: list[tuple[str, bytes]] = []
    for batch in parquet.iter_batches(batch_size=4096, columns=["key", "votes"], use_threads=False):
        for key, cells in zip(batch.column("key").to_pylist(), batch.column("votes").to_pylist(), strict=True):
            if not isinstance(key, str) or not isinstance(cells, bytes) or len(cells) != len(attributes):
                raise ValueError("a key or votes of another type or length")
            if not np.isin(np.frombuffer(cells, np.uint8), _BYTES).all():
                raise ValueError("a byte that is no vote")
            found.append((key, cells))
    return columns, found
