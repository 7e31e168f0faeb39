"""What each process of a distributed fit runs; a module of its own, because a new process has to import it."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from tests.worker.curvature.dense import batches_of, random_norms
from worker.curvature import fitting
from worker.curvature.errors import CurvatureError
from worker.curvature.factors import Factors, fit_factors
from worker.curvature.passes import Batch, Batches
from worker.curvature.storage import save_factors

SEED = 3
PROCESSES = 2


class InterruptedFitError(Exception):
    """The test's own interruption."""


def setting() -> tuple[nn.Module, Tensor, Tensor]:
    """A net with every kind of covered layer, images and a mask; single precision, as factor files are."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, groups=2)]
    model = random_norms(nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)))
    return model, torch.randn(40, 1, 6, 6), torch.rand(40, 3) > 0.3


def interrupted(batches: Batches, *, attempt: int, after: int) -> Batches:
    """The batches, of which the ``attempt``-th iteration (from 0) breaks off after ``after`` batches."""
    iterations = iter(range(1000))

    def make() -> Iterator[Batch]:
        broken = next(iterations) == attempt
        for number, batch in enumerate(batches()):
            if broken and number == after:
                raise InterruptedFitError
            yield batch
        if broken:  # fewer batches than that
            raise InterruptedFitError

    return make


def fit_in_group(rank: int, folder: str, cut: int) -> None:
    """Rows before ``cut`` are process 0's, the others process 1's."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    store = FileStore(f"{folder}/store", PROCESSES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    try:
        for name, factors in _fits(rank, Path(folder), cut).items():
            save_factors(factors, Path(folder) / f"{name}-{rank}")
    finally:
        dist.destroy_process_group()


def _fits(rank: int, folder: Path, cut: int) -> dict[str, Factors]:
    group = dist.group.WORLD
    assert group is not None
    model, x, mask = setting()
    own = slice(0, cut) if rank == 0 else slice(cut, None)
    batches = batches_of(x[own], mask[own], rows=torch.arange(len(x))[own], size=7) if len(x[own]) else list
    result = {"whole": fit_factors(model, batches, seed=SEED, process_group=group)}

    fitting.CHECKPOINT_SECONDS = 0.0
    checkpoint = folder / "checkpoint"
    for attempt in (0, 1):  # in the first pass of the first try, in the second pass of the second
        try:
            fit_factors(
                model,
                interrupted(batches, attempt=attempt, after=1),
                seed=SEED,
                process_group=group,
                checkpoint=checkpoint,
            )
        except InterruptedFitError:
            continue
        raise AssertionError("the fit was not interrupted")
    result["resumed"] = fit_factors(model, batches, seed=SEED, process_group=group, checkpoint=checkpoint)
    dist.barrier()
    assert not any(checkpoint.rglob("*.safetensors"))

    with torch.no_grad():
        model.get_parameter("6.weight")[0, 0] = torch.nan
    try:
        fit_factors(model, batches, seed=SEED, process_group=group)
    except CurvatureError:  # in every process, whichever had to decompose the matrix
        return result
    raise AssertionError("NaN went unnoticed")
