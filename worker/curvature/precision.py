"""Faster arithmetic for single-precision numbers, taken only where its error was measured.

Tensors stay in single precision; what a matrix product or a convolution does inside changes: products of TF32 numbers
(10 bits) on a GPU, of bfloat16 ones (7 bits) on a CPU that has instructions for them, sums in single precision in both.
Eigendecompositions are in double precision whatever is chosen.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from worker.curvature.ggn import GGN
from worker.curvature.passes import Batch, Fit
from worker.curvature.vectors import ParameterMapping

Precision = Literal["ieee", "tf32", "bf16"]
"""``ieee``: single precision throughout. ``tf32``: on a GPU; a CPU has none and stays at ``ieee``. ``bf16``: on a CPU;
a GPU takes ``tf32``."""

Computation = Callable[[nn.Module], Mapping[str, Tensor]]
"""Something to do with a model, in the model's type: named results."""

_ON_CPU: dict[Precision, str] = {"ieee": "ieee", "tf32": "ieee", "bf16": "bf16"}
_ON_GPU: dict[Precision, str] = {"ieee": "ieee", "tf32": "tf32", "bf16": "tf32"}


@dataclass(frozen=True)
class Measurement:
    """A precision's error, the largest of ``‖result − reference‖ / ‖reference‖`` over named results, and its time."""

    precision: Precision
    error: float
    seconds: float


@contextmanager
def arithmetic(precision: Precision | None) -> Iterator[None]:
    """Compute in ``precision``; as torch is set where it is None."""
    if precision is None:
        yield
        return
    backends = cast(Any, torch.backends)
    wanted = [
        (backends.mkldnn.matmul, _ON_CPU[precision]),
        (backends.mkldnn.conv, _ON_CPU[precision]),
        (backends.cuda.matmul, _ON_GPU[precision]),
        (backends.cudnn.conv, _ON_GPU[precision]),
    ]
    before = [backend.fp32_precision for backend, _ in wanted]
    try:
        for backend, value in wanted:
            backend.fp32_precision = value
        yield
    finally:
        for (backend, _), value in zip(wanted, before, strict=True):
            backend.fp32_precision = value


def moments_of(batch: Batch, *, seed: int = 0) -> Computation:
    """The second moments of the first pass over a batch, which hold everything a fit gets from a model."""
    x, mask, rows = batch

    def compute(model: nn.Module) -> Mapping[str, Tensor]:
        fit = Fit(model, seed=seed)
        moments = fit.with_covariances(fit.no_covariances(), (x.to(fit.like), mask, rows))
        return {name: moment.matrix(fit.like) for name, moment in moments.sums.items()}

    return compute


def product_of(x: Tensor, mask: Tensor | None, vector: ParameterMapping) -> Computation:
    """The exact Gauss-Newton product ``F v`` over rows ``x``, linearisation included."""

    def compute(model: nn.Module) -> Mapping[str, Tensor]:
        like = next(model.parameters())
        ggn = GGN(model, x.to(like), mask, parameters=tuple(vector))
        product = ggn.matmul({name: value.to(like) for name, value in vector.items()})
        return {"product": torch.cat([value.flatten() for value in product.values()])}

    return compute


def measure(
    model: nn.Module,
    compute: Computation,
    candidates: Sequence[Precision] = ("ieee", "tf32", "bf16"),
    *,
    repeats: int = 3,
) -> tuple[Measurement, ...]:
    """Error against double precision, and shortest time of ``repeats``, of a computation in each precision.

    Few rows will do: errors are relative, and do not grow with their number.
    """
    reference = compute(copy.deepcopy(model).double())
    found: list[Measurement] = []
    for precision in candidates:
        with arithmetic(precision):
            seconds: list[float] = []
            for _ in range(repeats):
                start = time.perf_counter()
                result = compute(model)
                error = max(_relative_error(result[name], value) for name, value in reference.items())
                seconds.append(time.perf_counter() - start)
        found.append(Measurement(precision, error, min(seconds)))
    return tuple(found)


def fastest_within(measurements: Sequence[Measurement], tolerance: float) -> Precision:
    """The fastest precision whose error is at most ``tolerance``; ``ieee`` if none is."""
    good = [one for one in measurements if one.error <= tolerance]
    return min(good, key=lambda one: one.seconds).precision if good else "ieee"


def _relative_error(result: Tensor, reference: Tensor) -> float:
    scale = float(reference.norm())
    return float((result.double() - reference).norm()) / scale if scale else float(result.double().norm())
