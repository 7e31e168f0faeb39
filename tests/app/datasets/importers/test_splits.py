"""Splits by hash: always the same, in the wanted shares, and independent of other rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.datasets.importers import SourceProblem
from app.datasets.importers.splits import is_calibration, position, read_split_file, three_way

NAMES = [f"Laysan_Albatross_{n:04d}.jpg" for n in range(20_000)]


def test_positions_never_change() -> None:
    # Data sets registered in different places must agree. The numbers were computed with coreutils' sha256sum.
    assert position("Black_Footed_Albatross_0001_796111.jpg") == pytest.approx(0.82899564, abs=1e-8)
    assert position("naïve.jpg") == pytest.approx(0.71369069, abs=1e-8)


def test_positions_are_even() -> None:
    counts, _ = np.histogram([position(name) for name in NAMES], bins=10, range=(0, 1))
    # Binomial with p = 0.1: standard deviation 42 of 2,000; five of them
    assert np.abs(counts - 2000).max() < 212


def test_shares() -> None:
    splits = [three_way(name) for name in NAMES]
    shares = {split: splits.count(split) / len(NAMES) for split in ("train", "calibration", "test")}
    # Standard deviation at most 0.0035; five of them
    assert shares == pytest.approx({"train": 0.6, "calibration": 0.2, "test": 0.2}, abs=0.018)
    assert np.mean([is_calibration(name) for name in NAMES]) == pytest.approx(0.2, abs=0.018)


def test_a_larger_share_moves_rows_out_of_train_only() -> None:
    for name in NAMES[:500]:
        before, after = three_way(name, 0.1, 0.1), three_way(name, 0.2, 0.3)
        assert before in ("train", after)


def test_a_split_file(tmp_path: Path) -> None:
    path = tmp_path / "splits.csv"
    path.write_text("split,key\ntrain,a\nVAL,b\ntest,c d\n")
    assert read_split_file(path) == {"a": "train", "b": "calibration", "c d": "test"}
    for content, message in [
        ("key,split\na,blue\n", "Row 1 of .* has a split other than"),
        ("key,split\na,train\na,test\n", "Row 2 of .* puts a key into a second split"),
        ("name,split\n", "lacks: key"),
    ]:
        path.write_text(content)
        with pytest.raises(SourceProblem, match=message):
            read_split_file(path)
    with pytest.raises(SourceProblem, match="There is no file"):
        read_split_file(tmp_path / "absent.csv")
