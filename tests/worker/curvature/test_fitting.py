"""Fits in parts, and fits that are interrupted."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.worker.curvature.blocks import assert_same_blocks
from tests.worker.curvature.dense import batches_of, conv_net
from tests.worker.curvature.processes import SEED, InterruptedFitError, interrupted, setting
from worker.curvature import checkpoints, fitting
from worker.curvature.blocks import NormFactor
from worker.curvature.errors import CheckpointError
from worker.curvature.factors import Factors, fit_factors
from worker.curvature.fitting import parts_within
from worker.curvature.layers import survey
from worker.curvature.passes import Batch, Batches


@pytest.fixture(autouse=True)
def every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written after every batch."""
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", 0.0)


def tensors(factors: Factors) -> list[Tensor]:
    found: list[Tensor] = []
    for block in factors.blocks:
        if isinstance(block, NormFactor):
            found += [block.block.vectors, block.block.values]
        else:
            found += [block.A.vectors, block.A.values, block.S.vectors, block.S.values, block.corrected]
    return found


def assert_same_bits(first: Factors, second: Factors) -> None:
    assert first.record == second.record
    for one, other in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(one, other)


def test_parts_keep_to_the_limit_where_layers_are_smaller() -> None:
    coverage = survey(conv_net())
    sizes = {"0": 2 * 81 + 2 * 9 + 27, "3": 2 * 169 + 2 * 16 + 52, "7": 2 * 289 + 2 * 9 + 51, "1": 2 * 36}
    assert parts_within(coverage, None, 8) == [("0", "3", "7", "1")]
    assert parts_within(coverage, 8 * (sizes["0"] + sizes["3"]), 8) == [("0", "3"), ("7",), ("1",)]
    assert parts_within(coverage, 8 * (sizes["7"] + sizes["1"]), 8) == [("0", "3"), ("7", "1")]
    assert parts_within(coverage, 1, 8) == [("0",), ("3",), ("7",), ("1",)]


@pytest.mark.parametrize("limit", [1, 15_000, 10**9])
def test_fits_in_parts_are_the_fit_of_the_whole(limit: int) -> None:
    model, x, mask = setting()
    iterations: list[int] = []

    def counted() -> list[Batch]:
        iterations.append(1)
        return list(batches_of(x, mask, size=9)())

    parts = len(parts_within(survey(model), limit, 8))
    whole = fit_factors(model, batches_of(x, mask, size=9), seed=SEED)
    divided = fit_factors(model, counted, seed=SEED, memory_limit=limit)
    assert (limit, parts) in {(1, 4), (15_000, 3), (10**9, 1)}
    # The part of a BatchNorm alone has no second pass.
    assert len(iterations) == 2 * parts - (limit == 1)
    assert divided.record == whole.record
    assert_same_blocks(divided, whole)


@pytest.mark.parametrize(("limit", "attempt"), [(None, 0), (None, 1), (1, 0), (1, 1), (1, 2), (1, 5), (1, 6)])
@pytest.mark.parametrize("after", [0, 2])
def test_an_interrupted_fit_goes_on_to_the_same_bits(
    tmp_path: Path, attempt: int, after: int, limit: int | None
) -> None:
    model, x, mask = setting()
    batches = batches_of(x, mask, size=9)
    checkpoint = tmp_path / "checkpoint"
    broken = interrupted(batches, attempt=attempt, after=after)
    with pytest.raises(InterruptedFitError):
        fit_factors(model, broken, seed=SEED, checkpoint=checkpoint, memory_limit=limit)
    resumed = fit_factors(model, batches, seed=SEED, checkpoint=checkpoint, memory_limit=limit)
    assert_same_bits(resumed, fit_factors(model, batches, seed=SEED, memory_limit=limit))
    assert not checkpoint.exists()


@pytest.mark.parametrize(("attempt", "after"), [(0, 3), (1, 2)])
def test_a_fit_that_ends_soon_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: int, after: int
) -> None:
    """Writing the sums of a large net takes longer than adding them up anew."""
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", 60.0)
    model, x, mask = setting()
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(InterruptedFitError):
        fit_factors(
            model,
            interrupted(batches_of(x, mask, size=9), attempt=attempt, after=after),
            seed=SEED,
            checkpoint=checkpoint,
        )
    assert not checkpoint.exists()


def test_eigenvalues_are_never_saved_without_their_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where arithmetic does not repeat to the bit, bases computed anew are others. Only the last write is due here."""
    model, x, mask = setting()
    clock = iter([False] * 6 + [True] * 100)  # five batches and the bases, then the second pass
    monkeypatch.setattr(checkpoints.Checkpoint, "due", property(lambda _: next(clock)))
    with pytest.raises(InterruptedFitError):
        fit_factors(model, interrupted(batches_of(x, mask, size=9), attempt=1, after=2), seed=SEED, checkpoint=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"part-0-{name}.safetensors" for name in ("bases", "eigenvalues")
    }
    (tmp_path / "part-0-bases.safetensors").unlink()
    rows: list[int] = []
    model.register_forward_hook(lambda module, arguments, output: rows.append(len(output)))
    resumed = fit_factors(model, batches_of(x, mask, size=9), seed=SEED, checkpoint=tmp_path)
    assert sum(rows[-5:]) == len(x), "the eigenvalues of the lost bases are summed anew"
    assert_same_bits(resumed, fit_factors(model, batches_of(x, mask, size=9), seed=SEED))


def test_what_is_summed_is_not_computed_again(tmp_path: Path) -> None:
    model, x, mask = setting()
    batches = batches_of(x, mask, size=9)
    with pytest.raises(InterruptedFitError):
        fit_factors(model, interrupted(batches, attempt=1, after=3), seed=SEED, checkpoint=tmp_path)
    rows: list[int] = []
    model.register_forward_hook(lambda module, arguments, output: rows.append(len(output)))
    seen: list[tuple[str, int]] = []
    fit_factors(model, batches, seed=SEED, checkpoint=tmp_path, progress=lambda *at: seen.append(at))
    assert rows == [9, 4]
    assert seen == [("eigenvalues", 36), ("eigenvalues", 40)]


def test_batches_may_be_cut_otherwise_when_the_fit_goes_on(tmp_path: Path) -> None:
    model, x, mask = setting()
    with pytest.raises(InterruptedFitError):
        fit_factors(model, interrupted(batches_of(x, mask, size=9), attempt=0, after=2), seed=SEED, checkpoint=tmp_path)
    resumed = fit_factors(model, batches_of(x, mask, size=7), seed=SEED, checkpoint=tmp_path)
    assert_same_blocks(resumed, fit_factors(model, batches_of(x, mask), seed=SEED))


def interrupted_fit(folder: Path) -> tuple[nn.Module, Tensor, Batches]:
    model, x, _ = setting()
    batches = batches_of(x, size=9)
    with pytest.raises(InterruptedFitError):
        fit_factors(model, interrupted(batches, attempt=0, after=2), seed=SEED, checkpoint=folder)
    return model, x, batches


@pytest.mark.parametrize("change", ["weights", "statistics", "seed", "draws", "norms"])
def test_checkpoints_of_other_fits_are_refused(tmp_path: Path, change: str) -> None:
    model, _, batches = interrupted_fit(tmp_path)
    fits: dict[str, Callable[[], Factors]] = {
        "weights": lambda: fit_factors(model, batches, seed=SEED, checkpoint=tmp_path),
        "statistics": lambda: fit_factors(model, batches, seed=SEED, checkpoint=tmp_path),
        "seed": lambda: fit_factors(model, batches, seed=SEED + 1, checkpoint=tmp_path),
        "draws": lambda: fit_factors(model, batches, seed=SEED, num_draws=2, checkpoint=tmp_path),
        "norms": lambda: fit_factors(model, batches, seed=SEED, bn="frozen", checkpoint=tmp_path),
    }
    if change in ("weights", "statistics"):
        with torch.no_grad():
            model.state_dict()["0.weight" if change == "weights" else "1.running_mean"][0] += 1e-3
    with pytest.raises(CheckpointError, match="belongs to a fit of another model or with other settings"):
        fits[change]()


def test_other_rows_are_refused(tmp_path: Path) -> None:
    model, x, _ = interrupted_fit(tmp_path)
    with pytest.raises(CheckpointError, match="rows are not those"):
        fit_factors(model, batches_of(x, size=9, rows=torch.arange(40) + 1), seed=SEED, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="8 rows fewer"):
        fit_factors(model, batches_of(x[:10]), seed=SEED, checkpoint=tmp_path)


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    model, _, batches = interrupted_fit(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=rf"damaged.*delete {re.escape(str(tmp_path))}"):
        fit_factors(model, batches, seed=SEED, checkpoint=tmp_path)


def test_an_unfinished_write_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, _ = setting()
    batches, save = batches_of(x, size=9), save_file
    written: list[Path] = []

    def failing_save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        if len(written) == 2:
            path.write_bytes(b"half a fi")
            raise InterruptedFitError
        save(tensors, path, metadata)
        written.append(path)

    monkeypatch.setattr(checkpoints, "save_file", failing_save)
    with pytest.raises(InterruptedFitError):
        fit_factors(model, batches, seed=SEED, checkpoint=tmp_path)
    monkeypatch.setattr(checkpoints, "save_file", save)
    resumed = fit_factors(model, batches, seed=SEED, checkpoint=tmp_path)
    assert_same_bits(resumed, fit_factors(model, batches, seed=SEED))


def test_models_without_trainable_layers_have_nothing_to_fit() -> None:
    with pytest.raises(ValueError, match="no trainable layers"):
        fit_factors(nn.Linear(3, 2).requires_grad_(False), batches_of(torch.randn(4, 3)), seed=SEED)
