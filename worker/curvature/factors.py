"""EK-FAC factors of the true Fisher: what they are, and how they are fitted, see :mod:`worker.curvature.passes`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worker.curvature.blocks import GroupedFactor, LayerFactor, NormFactor
from worker.curvature.distribution import Group
from worker.curvature.eigen import Eigenbasis
from worker.curvature.fitting import Road, parts_within
from worker.curvature.layers import JointMatrix, NormPolicy
from worker.curvature.moments import Moments
from worker.curvature.outputs import OutputCurvature, bernoulli_variance
from worker.curvature.passes import Bases, Batches, Fit, OutputFisher, Progress, silent
from worker.curvature.precision import Precision, arithmetic

Block = LayerFactor | GroupedFactor | NormFactor


@dataclass(frozen=True)
class FitRecord:
    """How factors were made. ``adaptations`` lists later changes of shape, see
    :mod:`worker.curvature.surgery`."""

    seed: int
    num_draws: int
    output_fisher: OutputFisher
    bn: NormPolicy
    rows: int
    uncovered: tuple[str, ...]
    precision: Precision | None = None
    adaptations: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Factors:
    """Fitted curvature, by layer."""

    layers: Mapping[str, LayerFactor]
    norms: Mapping[str, NormFactor]
    record: FitRecord
    grouped: Mapping[str, GroupedFactor] = field(default_factory=dict)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the covered parameters."""
        return tuple(name for block in self.blocks for name in block_names(block))

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (*self.layers.values(), *self.grouped.values(), *self.norms.values())

    @property
    def mean_eigenvalue(self) -> float:
        """Trace of the fitted curvature over the number of covered parameters: a scale for the damping."""
        kronecker: list[LayerFactor | GroupedFactor] = [*self.layers.values(), *self.grouped.values()]
        trace = sum(float(layer.corrected.double().sum()) for layer in kronecker)
        trace += sum(float(norm.block.values.double().sum()) for norm in self.norms.values())
        size = sum(layer.parameters.shape[0] * layer.parameters.shape[1] for layer in kronecker)
        return trace / (size + sum(norm.block.vectors.shape[0] for norm in self.norms.values()))

    def manifest(self) -> dict[str, Any]:
        """JSON-ready description: how the factors were made and what they cover."""
        return {
            **asdict(self.record),
            "uncovered": list(self.record.uncovered),
            "adaptations": list(self.record.adaptations),
            "covered": list(self.parameter_names),
            "layers": {name: _described(layer.parameters) for name, layer in self.layers.items()},
            "grouped": {name: _described(layer.parameters) for name, layer in self.grouped.items()},
            "norms": {name: {"weight": norm.weight, "bias": norm.bias} for name, norm in self.norms.items()},
        }

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Factors":
        """The same factors on another device or in another floating type."""
        return replace(
            self,
            layers={name: layer.to(device, dtype) for name, layer in self.layers.items()},
            norms={name: norm.to(device, dtype) for name, norm in self.norms.items()},
            grouped={name: layer.to(device, dtype) for name, layer in self.grouped.items()},
        )


def block_names(block: Block) -> tuple[str, ...]:
    """The parameter names of a block."""
    return block.names if isinstance(block, NormFactor) else block.parameters.names


def _described(parameters: JointMatrix) -> dict[str, Any]:
    return {"weight": parameters.weight, "bias": parameters.bias, "weight_shape": list(parameters.weight_shape)}


def fit_factors(
    model: nn.Module,
    batches: Batches,
    *,
    seed: int,
    num_draws: int = 1,
    output_fisher: OutputFisher = "sampled",
    output_curvature: OutputCurvature = bernoulli_variance,
    bn: NormPolicy = "exact",
    progress: Progress | None = None,
    memory_limit: int | None = None,
    checkpoint: Path | None = None,
    process_group: Group | None = None,
    precision: Precision | None = None,
) -> Factors:
    """Fit the EK-FAC factors of ``model`` (images ``[B, C, H, W]`` to logits ``[B, k]``), in eval mode, on
    the model's device.

    Args:
        model: left as it is; only parameters with ``requires_grad`` are covered.
        batches: called twice per part, see :data:`Batches`.
        seed: of the sampled labels.
        num_draws: labels drawn per row, one backward pass each; ignored by the exact Fisher.
        output_fisher: ``sampled`` draws ``c ~ Bernoulli(p)``; ``exact`` takes one backward pass per logit,
            weighted with the root of its curvature.
        output_curvature: the loss curvature at the logits, only for ``exact``.
        bn: whether BatchNorm's affine parameters get an exact block or are left out.
        progress: called as the fit advances.
        memory_limit: bytes for sums and bases, beside the model, its activations and the factors that are ready. The
            layers are fitted in as many parts as that takes, each with two passes over the rows.
        checkpoint: a folder. A fit that is interrupted goes on from there, to the same bits, if it is called again
            with the same model, arguments and rows in the same order; a fit that is done deletes it.
        process_group: fit together with the other processes of the group. Each gives its own rows in ``batches``
            (disjoint, possibly none) and gets the factors of all rows; the sums differ from those of one process in
            the order of additions only. Other arguments must be equal.
        precision: of the passes' arithmetic, as torch is set if None; see :mod:`worker.curvature.precision`.

    Raises:
        UnsupportedLayerError, TrainingModeError: see :func:`worker.curvature.layers.survey`; a layer does not run
            exactly once, or does not explain its parameters' gradients.
        CheckpointError: the checkpoint is damaged or of another fit.
        NonFiniteError: a layer's moments are not finite.
        ValueError: no rows, no covered layer, or the passes saw different numbers of rows.
    """
    make = partial(
        Fit,
        model,
        seed=seed,
        num_draws=num_draws,
        output_fisher=output_fisher,
        output_curvature=output_curvature,
        bn=bn,
    )
    whole = make()
    if not whole.coverage.all:
        raise ValueError("the model has no trainable layers to fit factors of")
    parts = parts_within(whole.coverage, memory_limit, whole.like.element_size())
    fits = [whole] if len(parts) == 1 else [make(only=names) for names in parts]
    road = Road(batches, progress or silent, checkpoint, process_group, precision)
    roads = [replace(road, part=number) for number in range(len(fits))]
    with arithmetic(precision):
        result = reduce(_joined, (assemble(fit, *road.fitted(fit)) for fit, road in zip(fits, roads, strict=True)))
    for fit, road in zip(fits, roads, strict=True):
        road.forget(fit)
    return replace(result, record=replace(result.record, precision=precision))


def _joined(first: Factors, second: Factors) -> Factors:
    """The factors of two sets of layers of one fit."""
    if first.record != second.record:
        raise ValueError("the parts of the fit saw different rows")
    return replace(
        first,
        layers={**first.layers, **second.layers},
        norms={**first.norms, **second.norms},
        grouped={**first.grouped, **second.grouped},
    )


def assemble(fit: Fit, bases: Bases, eigenvalues: Moments[Tensor]) -> Factors:
    """Factors from the (merged) results of both passes, in the model's floating type.

    Raises:
        ValueError: the passes saw different numbers of rows.
    """
    if eigenvalues.sums and eigenvalues.count != bases.count:
        raise ValueError(f"the passes saw {bases.count} and {eigenvalues.count} rows; both must see the same")
    bases = fit.cast(bases)
    corrected = {name: total / eigenvalues.count for name, total in eigenvalues.sums.items()}
    layers = {}
    for layer in fit.coverage.layers:
        A = bases.A[layer.name]
        in_order = Eigenbasis(A.vectors[layer.columns.to(A.vectors.device)], A.values)
        layers[layer.name] = LayerFactor(
            layer.name, layer.parameters, in_order, bases.S[layer.name], corrected[layer.name]
        )
    grouped = {
        layer.name: GroupedFactor(
            layer.name, layer.parameters, bases.A[layer.name], bases.S[layer.name], corrected[layer.name]
        )
        for layer in fit.coverage.grouped
    }
    norms = {
        norm.name: NormFactor(norm.name, norm.weight, norm.bias, bases.blocks[norm.name]) for norm in fit.coverage.norms
    }
    record = FitRecord(fit.seed, fit.num_draws, fit.output_fisher, fit.bn, bases.count, fit.coverage.uncovered)
    return Factors(layers, norms, record, grouped)
