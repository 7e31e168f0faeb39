"""Two processes fit what one does."""

from pathlib import Path

import pytest
from torch.multiprocessing.spawn import spawn

from tests.worker.curvature.blocks import assert_same_blocks
from tests.worker.curvature.dense import batches_of
from tests.worker.curvature.processes import PROCESSES, SEED, fit_in_group, setting
from worker.curvature.distribution import shares
from worker.curvature.factors import fit_factors
from worker.curvature.storage import load_factors


@pytest.mark.parametrize("cut", [13, 40], ids=["rows for both", "rows for one"])
def test_two_processes_fit_what_one_does_also_when_interrupted(tmp_path: Path, cut: int) -> None:
    """Sums are added in another order, and files are in single precision: 1e-5 of the largest entry is all that may
    differ."""
    model, x, mask = setting()
    alone = fit_factors(model, batches_of(x, mask, size=7), seed=SEED)
    spawn(fit_in_group, (str(tmp_path), cut), nprocs=PROCESSES)  # type: ignore[no-untyped-call]
    for rank in range(PROCESSES):
        for name in ("whole", "resumed"):
            together = load_factors(tmp_path / f"{name}-{rank}")
            assert together.record == alone.record
            assert_same_blocks(together, alone, tolerance=1e-5)
    assert (tmp_path / "whole-0").read_bytes() == (tmp_path / "whole-1").read_bytes()
    assert (tmp_path / "whole-0").read_bytes() == (tmp_path / "resumed-0").read_bytes()


def test_eigenproblems_are_shared_by_their_cost() -> None:
    widths = {"a": 10, "b": 100, "c": 60, "d": 60, "e": 60}
    assert shares(widths, 2) == {"b": 0, "c": 1, "d": 1, "e": 1, "a": 1}
    assert set(shares(widths, 1).values()) == {0}
