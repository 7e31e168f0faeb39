"""A plan as files: to look at, to keep beside a paper, to import again with the same splits and concepts."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.datasets.importers.plan import ImportPlan, SourceProblem, VoteBook
from app.datasets.vote_files import FORMAT


def write_plan(plan: ImportPlan, directory: Path, *, dataset_id: str | None, title: str | None) -> list[Path]:
    """Write ``definition.json``, ``manifest.csv`` and ``splits.csv``; where classes voted, ``mask.txt`` and votes too.

    Returns:
        The files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {
        "definition.json": json.dumps(plan.definition(dataset_id, title), indent=2).encode(),
        "manifest.csv": plan.manifest(),
        "splits.csv": _splits(plan),
    }
    if plan.votes is not None:
        files["mask.txt"] = "".join(f"{name}\n" for name in plan.concepts).encode()
        files["votes.parquet"] = votes_parquet(plan, plan.votes)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return [directory / name for name in files]


def read_mask(path: Path) -> frozenset[str]:
    """Numbers or names of attributes, one per line; lines that start with ``#`` are comments.

    Raises:
        SourceProblem: there is no such file, or nothing in it.
    """
    lines = path.read_text(encoding="utf-8-sig").splitlines() if path.is_file() else []
    mask = frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not mask:
        raise SourceProblem("The mask cannot be read:", [f"There is no file {path}, or no attribute in it."])
    return mask


def read_votes(path: Path) -> tuple[list[str], VoteBook]:
    """Keys of rows, and their votes in the same order, from ``votes.parquet``."""
    table = pq.read_table(path)
    metadata = table.schema.metadata or {}
    if metadata.get(b"format") != FORMAT:
        raise SourceProblem("The votes cannot be read:", [f"{path} holds something else."])
    attributes = tuple(json.loads(metadata[b"attributes"]))
    votes = np.frombuffer(b"".join(table.column("votes").to_pylist()), np.uint8).reshape(-1, len(attributes))
    return table.column("key").to_pylist(), VoteBook(attributes, votes)


def _splits(plan: ImportPlan) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("key", "split"))
    writer.writerows((row.key, row.split) for row in plan.rows)
    return text.getvalue().encode()


def votes_parquet(plan: ImportPlan, book: VoteBook) -> bytes:
    """Part ``votes``."""
    metadata = {b"format": FORMAT, b"attributes": json.dumps(book.attributes).encode()}
    schema = pa.schema([("key", pa.string()), ("votes", pa.binary(len(book.attributes)))], metadata=metadata)
    columns = [[row.key for row in plan.rows], [votes.tobytes() for votes in book.votes]]
    file = io.BytesIO()
    pq.write_table(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema), file)
    return file.getvalue()
