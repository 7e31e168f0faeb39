"""One fit of EK-FAC factors by modelmend, curvlinops or kronfluence: the same model, rows, batches and number of draws.

All three fit Linear and Conv2d layers, weight and bias jointly, with one sampled label per concept and row, and
correct the eigenvalues. The trace is the sum of the corrected eigenvalues: labels are drawn by each in its own way, so
that traces agree within a few per cent shows that the same thing was computed.
"""

from __future__ import annotations

import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from generated import TEXTURES, Shape, generate
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from worker.cbm.concept_predictor import ConceptPredictor, build_concept_predictor
from worker.curvature import Batch, fit_factors

BATCH_SIZE = 64


@dataclass(frozen=True)
class Work:
    """What is fitted: a ResNet-18 of random weights on generated images."""

    rows: int = 128
    image_size: int = 64
    concepts: int = 112
    width: int = 64
    device: str = "cpu"

    def architecture(self) -> dict[str, Any]:
        return {"name": "resnet18", "stem": "imagenet", "width": self.width, "image_size": self.image_size}

    def model(self) -> ConceptPredictor:
        return build_concept_predictor(self.architecture(), self.concepts).to(self.device).eval()

    def images(self) -> tuple[Tensor, Tensor]:
        """Images and concept labels."""
        shape = Shape(2, self.concepts // TEXTURES, self.image_size, self.rows, 1, 1)
        rows = generate(shape, 0, self.device).train
        return rows.images, rows.concepts.to(rows.images.dtype)


@dataclass(frozen=True)
class Fitted:
    """Seconds of the fit, memory at its peak, and the fitted curvature's trace per sample."""

    seconds: float
    peak_gib: float
    trace: float


def measured(library: str, work: Work) -> Fitted:
    """One fit. Memory is the process's (on a GPU: torch's), so measure each fit in a process of its own."""
    model, (x, y) = work.model(), work.images()
    with torch.no_grad():
        model(x[:2])  # first calls initialise libraries
    start = time.perf_counter()
    trace = FITS[library](model, x, y)
    if work.device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return Fitted(seconds, peak_gib(work.device), trace())


def peak_gib(device: str) -> float:
    """Memory of this process at its peak."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def fit_ours(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], float]:
    def batches() -> Iterator[Batch]:
        for start in range(0, len(x), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            yield x[part], None, torch.arange(len(x))[part]

    factors = fit_factors(model, batches, seed=0, bn="frozen")
    return lambda: sum(float(layer.corrected.sum()) for layer in factors.layers.values())


def fit_curvlinops(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from curvlinops import EKFACLinearOperator, FisherType  # noqa: PLC0415  (of the extra "bench")

    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    operator = EKFACLinearOperator(
        model,
        nn.BCEWithLogitsLoss(reduction="sum"),
        [parameter for layer in layers for parameter in layer.parameters()],
        list(zip(torch.split(x, BATCH_SIZE), torch.split(y, BATCH_SIZE), strict=True)),
        check_deterministic=False,
        fisher_type=FisherType.MC,
        mc_samples=1,
        separate_weight_and_bias=False,
        num_per_example_loss_terms=1,
        num_data=len(x),
    )
    operator.compute_kronecker_factors()
    operator.compute_eigenvalue_correction()

    def trace() -> float:
        by_layer = operator._corrected_eigenvalues.values()
        # Per layer, or per parameter of it where there is only the weight.
        tensors = [tensor for found in by_layer for tensor in (found.values() if isinstance(found, dict) else [found])]
        return sum(float(tensor.sum()) for tensor in tensors) / len(x)

    return trace


def fit_kronfluence(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kronfluence.analyzer import Analyzer, prepare_model  # noqa: PLC0415  (of the extra "bench")
        from kronfluence.arguments import FactorArguments  # noqa: PLC0415
        from kronfluence.task import Task  # noqa: PLC0415

    class Concepts(Task):  # type: ignore[misc]  # the library has no types
        def compute_train_loss(self, batch: list[Tensor], model: nn.Module, sample: bool = False) -> Tensor:
            logits = model(batch[0])
            labels = torch.bernoulli(logits.detach().sigmoid()) if sample else batch[1]
            return binary_cross_entropy_with_logits(logits, labels, reduction="sum")

        def compute_measurement(self, batch: list[Tensor], model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

    task = Concepts()
    with tempfile.TemporaryDirectory() as folder:
        analyzer = Analyzer(
            "speed",
            prepare_model(model, task),
            task,
            cpu=x.device.type == "cpu",
            output_dir=str(Path(folder)),
            disable_tqdm=True,
            disable_model_save=True,
        )
        analyzer.fit_all_factors(
            "factors",
            torch.utils.data.TensorDataset(x, y),
            per_device_batch_size=BATCH_SIZE,
            factor_args=FactorArguments(strategy="ekfac"),
        )
        corrected = analyzer.load_lambda_matrices("factors")["lambda_matrix"]
    return lambda: sum(float(value.sum()) for value in corrected.values()) / len(x)


FITS = {"ours": fit_ours, "curvlinops": fit_curvlinops, "kronfluence": fit_kronfluence}
