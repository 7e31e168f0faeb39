"""EK-FAC factors of the true Fisher, fitted in two passes over the data.

The first pass sums the second moments of layer inputs and of gradients at the pre-activations; their
eigenvectors are the basis. The second sums the squared gradient entries in that basis. Each pass yields
:class:`~worker.curvature.moments.Moments`, which add over disjoint rows, so a fit may be split over processes
and merged between the passes.

Scale: gradients are those of the concept loss summed over concepts, moments are means over samples. The
    labels behind the
gradients are drawn from the model, never read from the data: on a fitted model the empirical Fisher all but
    vanishes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from worker.curvature.blocks import LayerFactor, NormFactor
from worker.curvature.capture import Capture
from worker.curvature.contraction import as_chunks, rows_per_chunk, squared_projections
from worker.curvature.eigen import Eigenbasis
from worker.curvature.layers import Coverage, KroneckerLayer, NormPolicy, survey
from worker.curvature.moments import Moments, SecondMoment
from worker.curvature.outputs import OutputCurvature, bernoulli_variance, masked_curvature, sampled_residual

Batch = tuple[Tensor, Tensor | None, Tensor]
"""``(x [B, C, H, W], mask [B, k] or None, rows [B])``; ``rows`` are global row indices, which key the sampled
labels."""

Batches = Callable[[], Iterable[Batch]]
"""Makes an iterable over the same rows each time it is called; batch sizes and order are free."""

OutputFisher = Literal["sampled", "exact"]

Progress = Callable[[str, int], None]
"""Called with a phase (``covariances``, ``eigenbases``, ``eigenvalues``) and how many rows, or layers, are
done in it."""

_DRAWS_AT_ONCE = 8  # gradients of this many backward passes are held together, so that patches are unfolded once


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
    adaptations: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Factors:
    """Fitted curvature, by layer."""

    layers: Mapping[str, LayerFactor]
    norms: Mapping[str, NormFactor]
    record: FitRecord

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the covered parameters."""
        return tuple(name for block in self.blocks for name in block_names(block))

    @property
    def blocks(self) -> tuple[LayerFactor | NormFactor, ...]:
        return (*self.layers.values(), *self.norms.values())

    @property
    def mean_eigenvalue(self) -> float:
        """Trace of the fitted curvature over the number of covered parameters: a scale for the damping."""
        trace = sum(float(layer.corrected.double().sum()) for layer in self.layers.values())
        trace += sum(float(norm.block.values.double().sum()) for norm in self.norms.values())
        size = sum(layer.parameters.shape[0] * layer.parameters.shape[1] for layer in self.layers.values())
        return trace / (size + sum(norm.block.vectors.shape[0] for norm in self.norms.values()))

    def manifest(self) -> dict[str, Any]:
        """JSON-ready description: how the factors were made and what they cover."""
        return {
            **asdict(self.record),
            "uncovered": list(self.record.uncovered),
            "adaptations": list(self.record.adaptations),
            "covered": list(self.parameter_names),
            "layers": {
                name: {
                    "weight": layer.parameters.weight,
                    "bias": layer.parameters.bias,
                    "weight_shape": list(layer.parameters.weight_shape),
                }
                for name, layer in self.layers.items()
            },
            "norms": {name: {"weight": norm.weight, "bias": norm.bias} for name, norm in self.norms.items()},
        }

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Factors":
        """The same factors on another device or in another floating type."""
        return replace(
            self,
            layers={name: layer.to(device, dtype) for name, layer in self.layers.items()},
            norms={name: norm.to(device, dtype) for name, norm in self.norms.items()},
        )


def block_names(block: LayerFactor | NormFactor) -> tuple[str, ...]:
    """The parameter names of a block."""
    return block.parameters.names if isinstance(block, LayerFactor) else block.names


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
) -> Factors:
    """Fit the EK-FAC factors of ``model`` (images ``[B, C, H, W]`` to logits ``[B, k]``), in eval mode, on
    the model's device.

    Args:
        model: left as it is; only parameters with ``requires_grad`` are covered.
        batches: called twice, see :data:`Batches`.
        seed: of the sampled labels.
        num_draws: labels drawn per row, one backward pass each; ignored by the exact Fisher.
        output_fisher: ``sampled`` draws ``c ~ Bernoulli(p)``; ``exact`` takes one backward pass per logit,
            weighted with the root of its curvature.
        output_curvature: the loss curvature at the logits, only for ``exact``.
        bn: whether BatchNorm's affine parameters get an exact block or are left out.
        progress: called as the fit advances.

    Raises:
        UnsupportedLayerError, TrainingModeError: see :func:`worker.curvature.layers.survey`.
        NonFiniteError: a layer's moments are not finite.
        ValueError: no rows, or the two passes saw different numbers of rows.
    """
    fit = Fit(
        model,
        seed=seed,
        num_draws=num_draws,
        output_fisher=output_fisher,
        output_curvature=output_curvature,
        bn=bn,
    )
    report = progress or (lambda phase, done: None)
    bases = eigenbases(fit.covariances(batches, report), report)
    return fit.assemble(bases, fit.corrected_eigenvalues(batches, bases, report))


@dataclass(frozen=True, eq=False)
class Bases:
    """Eigenbases by layer: ``A`` and ``S`` of Kronecker layers, ``blocks`` of BatchNorms, fitted on ``count``
    rows."""

    count: int
    A: Mapping[str, Eigenbasis]
    S: Mapping[str, Eigenbasis]
    blocks: Mapping[str, Eigenbasis]


def eigenbases(covariances: Moments[SecondMoment], progress: Progress = lambda phase, done: None) -> Bases:
    """Decompose the (merged) moments of the first pass. Raises ``ValueError`` if they are of no rows."""
    if covariances.count == 0:
        raise ValueError("no rows to fit curvature factors on")
    found: dict[str, dict[str, Eigenbasis]] = {"A": {}, "S": {}, "block": {}}
    for done, (key, moment) in enumerate(covariances.sums.items(), start=1):
        kind, name = key.split(":", 1)
        found[kind][name] = moment.decompose(covariances.count, f"{name} ({kind})")
        progress("eigenbases", done)
    return Bases(covariances.count, found["A"], found["S"], found["block"])


class Fit:
    """The two passes and their assembly, for callers that merge partial moments in between; see
    :func:`fit_factors`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        seed: int,
        num_draws: int = 1,
        output_fisher: OutputFisher = "sampled",
        output_curvature: OutputCurvature = bernoulli_variance,
        bn: NormPolicy = "exact",
    ) -> None:
        if output_fisher not in ("sampled", "exact"):
            raise ValueError(f"output_fisher must be 'sampled' or 'exact', not {output_fisher!r}")
        if output_fisher == "sampled" and output_curvature is not bernoulli_variance:
            raise ValueError("sampled labels are Bernoulli; another output_curvature needs output_fisher='exact'")
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1, not {num_draws}")
        self.model = model
        self.coverage: Coverage = survey(model, bn=bn)
        self.record = FitRecord(seed, num_draws, output_fisher, bn, 0, self.coverage.uncovered)
        self._output_curvature = output_curvature
        self._modules: dict[str, nn.Module] = {layer.name: layer.module for layer in self.coverage.layers}
        self._modules |= {norm.name: norm.module for norm in self.coverage.norms}

    def covariances(self, batches: Batches, progress: Progress = lambda phase, done: None) -> Moments[SecondMoment]:
        """First pass: sums behind ``A`` (keys ``A:layer``), ``S`` (``S:layer``) and BatchNorm blocks
        (``block:layer``)."""
        sums: dict[str, SecondMoment] = {}
        for layer in self.coverage.layers:
            d_out, d_in = layer.parameters.shape
            sums[f"A:{layer.name}"], sums[f"S:{layer.name}"] = SecondMoment(d_in), SecondMoment(d_out)
        for norm in self.coverage.norms:
            sums[f"block:{norm.name}"] = SecondMoment(2 * norm.module.num_features)
        count = 0
        for size, capture, residuals in self._forward_passes(batches):
            for block, gradients in enumerate(_gradients(capture, residuals)):
                for layer in self.coverage.layers:
                    draws = gradients[layer.name]
                    positions = layer.positions(draws[0])
                    if block == 0:
                        for patches in _patches(layer, capture, positions):
                            sums[f"A:{layer.name}"].add_rows(patches.flatten(0, 1))
                    for gradient in draws:
                        rows = layer.gradient_rows(gradient).flatten(0, 1)
                        sums[f"S:{layer.name}"].add_rows(rows / positions**0.5)
                for norm in self.coverage.norms:
                    for gradient in gradients[norm.name]:
                        rows = norm.sample_gradients(capture.input_of(norm.name), gradient)
                        sums[f"block:{norm.name}"].add_rows(rows)
            count += size
            progress("covariances", count)
        return Moments(count, sums)

    def corrected_eigenvalues(
        self, batches: Batches, bases: Bases, progress: Progress = lambda phase, done: None
    ) -> Moments[Tensor]:
        """Second pass: the sums behind ``Λ*`` by layer, in the given bases and with the same labels as in the
        first."""
        like = next(self.model.parameters())
        Q_A = {name: basis.vectors.to(like) for name, basis in bases.A.items()}
        Q_S = {name: basis.vectors.to(like) for name, basis in bases.S.items()}
        sums = {name: like.new_zeros(Q_S[name].shape[1], Q_A[name].shape[1]) for name in Q_A}
        count = 0
        for size, capture, residuals in self._forward_passes(batches):
            for gradients in _gradients(capture, residuals):
                for layer in self.coverage.layers:
                    draws = [layer.gradient_rows(gradient) for gradient in gradients[layer.name]]
                    start = 0
                    for patches in _patches(layer, capture, draws[0].shape[1]):
                        stop = start + len(patches)
                        part = [rows[start:stop] for rows in draws]
                        sums[layer.name] += squared_projections(patches, part, Q_A[layer.name], Q_S[layer.name])
                        start = stop
            count += size
            progress("eigenvalues", count)
        return Moments(count, sums)

    def assemble(self, bases: Bases, eigenvalues: Moments[Tensor]) -> Factors:
        """Factors from the (merged) results of both passes, in the model's floating type."""
        if eigenvalues.count != bases.count:
            raise ValueError(f"the passes saw {bases.count} and {eigenvalues.count} rows; both must see the same")
        like = next(self.model.parameters())
        place = (like.device, like.dtype)
        layers = {
            layer.name: LayerFactor(
                layer.name,
                layer.parameters,
                bases.A[layer.name].to(*place),
                bases.S[layer.name].to(*place),
                eigenvalues.sums[layer.name] / eigenvalues.count,
            )
            for layer in self.coverage.layers
        }
        norms = {
            norm.name: NormFactor(norm.name, norm.weight, norm.bias, bases.blocks[norm.name].to(*place))
            for norm in self.coverage.norms
        }
        return Factors(layers, norms, replace(self.record, rows=bases.count))

    def _forward_passes(self, batches: Batches) -> Iterator[tuple[int, Capture, list[Tensor]]]:
        """Per batch its size, its recorded forward pass, and the residuals to send back."""
        device = next(self.model.parameters()).device
        for x, mask, rows in batches():
            if rows.shape != x.shape[:1]:
                raise ValueError(f"{x.shape[0]} samples need as many row indices, not {tuple(rows.shape)}")
            capture = Capture(self.model, self._modules, x.to(device, non_blocking=True))
            known = None if mask is None else mask.to(device, non_blocking=True)
            yield x.shape[0], capture, self._residuals(capture.logits.detach(), known, rows)

    def _residuals(self, logits: Tensor, mask: Tensor | None, rows: Tensor) -> list[Tensor]:
        """Gradients at the logits whose outer products sum to the (estimated) output Fisher."""
        if self.record.output_fisher == "sampled":
            draws = self.record.num_draws
            return [
                sampled_residual(logits, mask, rows, seed=self.record.seed, draw=draw) / draws**0.5
                for draw in range(draws)
            ]
        roots = masked_curvature(logits, mask, self._output_curvature).sqrt()
        return list(torch.diag_embed(roots).unbind(1))


def _gradients(capture: Capture, residuals: list[Tensor]) -> Iterator[dict[str, list[Tensor]]]:
    """Gradients at the layer outputs by layer name, a list over draws, some draws at a time."""
    remaining = len(residuals)
    for part in as_chunks(len(residuals), _DRAWS_AT_ONCE):
        found: dict[str, list[Tensor]] = {}
        for residual in residuals[part]:
            remaining -= 1
            for name, gradient in capture.output_gradients(residual, last=remaining == 0).items():
                found.setdefault(name, []).append(gradient)
        yield found


def _patches(layer: KroneckerLayer, capture: Capture, positions: int) -> Iterator[Tensor]:
    """The layer's patches ``[b, T, d_in]``, some samples at a time."""
    x = capture.input_of(layer.name)
    for part in as_chunks(x.shape[0], rows_per_chunk(positions * layer.parameters.shape[1])):
        yield layer.patches(x[part])
