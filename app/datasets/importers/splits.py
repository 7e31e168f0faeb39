"""Splits where a data set brings none: drawn by hash, so that they never change, or read from a file.

A row's place depends on its own name only: adding or removing other rows, their order, or another machine change
nothing. The names of one person's rows should be equal, so that nobody is in two splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from app.datasets.importers.files import malformed, require_columns, table
from app.datasets.importers.plan import SourceProblem, counted, some
from app.datasets.snapshots import SPLITS

CALIBRATION_SHARE = 0.2
TEST_SHARE = 0.2
_DOMAIN = b"modelmend.split.1\0"
_SYNONYMS = {
    **{split: split for split in SPLITS},
    **dict.fromkeys(("training", "tr"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "cal"), "calibration"),
    **dict.fromkeys(("testing", "te"), "test"),
}


def position(name: str) -> float:
    """Where ``name`` falls in [0, 1): the first 53 bits of a SHA-256, so that every Python computes the same."""
    digest = hashlib.sha256(_DOMAIN + name.encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def is_calibration(name: str, share: float = CALIBRATION_SHARE) -> bool:
    """Whether a training row becomes a calibration row."""
    return position(name) < share


def three_way(name: str, calibration: float = CALIBRATION_SHARE, test: float = TEST_SHARE) -> str:
    """A split for a row that has none; a larger test share takes from train, never from calibration."""
    place = position(name)
    return "calibration" if place < calibration else "test" if place >= 1 - test else "train"


def split_called(word: str) -> str | None:
    """The split that ``word`` names, or ``None``."""
    return _SYNONYMS.get(word.strip().lower())


def read_split_file(path: Path) -> dict[str, str]:
    """Splits by key out of a CSV file with the columns ``key`` and ``split``.

    Raises:
        SourceProblem: no such file, columns missing, an unknown split, or a key twice.
    """
    if not path.is_file():
        raise SourceProblem("The splits cannot be read:", [f"There is no file {path}."])
    splits: dict[str, str] = {}
    for number, row in table(path):
        if number == 0:
            require_columns(path, row, ("key", "split"))
            continue
        split = split_called(row["split"])
        if split is None:
            raise malformed(path, number, "has a split other than train, calibration and test", line="Row")
        if splits.setdefault(row["key"], split) != split:
            raise malformed(path, number, "puts a key into a second split", line="Row")
    return splits


def split_of(key: str, splits: Mapping[str, str] | None, default: str) -> str:
    """The split that a split file gives to ``key``; ``default`` without a file. Keys not in the file are an error."""
    return default if splits is None else splits.get(key, "")


def require_splits(title: str, unplaced: list[str]) -> None:
    """Raises SourceProblem when a split file has left keys out."""
    if unplaced:
        raise SourceProblem(title, [f"The split file lacks {counted(len(unplaced), 'key')}: {some(unplaced)}."])
