"""The two passes over the data behind EK-FAC factors.

The first pass sums the second moments of layer inputs and of gradients at the pre-activations; their
eigenvectors are the basis. The second sums the squared gradient entries in that basis. Each pass yields
:class:`~worker.curvature.moments.Moments`, which add over disjoint rows, so a fit may be split over processes
and merged between the passes.

Scale: gradients are those of the concept loss summed over concepts, moments are means over samples. The labels behind
the gradients are drawn from the model, never read from the data: on a fitted model the empirical Fisher all but
vanishes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from worker.curvature.capture import Capture
from worker.curvature.contraction import (
    as_chunks,
    rows_per_chunk,
    squared_projections,
    squared_projections_of_groups,
)
from worker.curvature.eigen import Eigenbasis
from worker.curvature.layers import Coverage, GroupedLayer, KroneckerLayer, NormPolicy, survey
from worker.curvature.moments import Moments, SecondMoment
from worker.curvature.outputs import OutputCurvature, bernoulli_variance, masked_curvature, sampled_residual
from worker.curvature.selfcheck import ROWS, require_explained_gradients

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


def silent(phase: str, done: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, eq=False)
class Bases:
    """Eigenbases by layer: ``A`` (rows in the order of the layer's patches) and ``S`` of Kronecker and grouped layers,
    ``blocks`` of BatchNorms, fitted on ``count`` rows."""

    count: int
    A: Mapping[str, Eigenbasis]
    S: Mapping[str, Eigenbasis]
    blocks: Mapping[str, Eigenbasis]


def eigenbases(covariances: Moments[SecondMoment], progress: Progress = silent) -> Bases:
    """Decompose the (merged) moments of the first pass. Raises ``ValueError`` if they are of no rows."""
    found: dict[str, Eigenbasis] = {}
    for done, key in enumerate(covariances.sums, start=1):
        found[key] = eigenbasis(covariances, key)
        progress("eigenbases", done)
    return bases_of(covariances.count, found)


def eigenbasis(covariances: Moments[SecondMoment], key: str) -> Eigenbasis:
    """The eigenbasis of one of the first pass's moments, in float64."""
    if covariances.count == 0:
        raise ValueError("no rows to fit curvature factors on")
    kind, name = key.split(":", 1)
    return covariances.sums[key].decompose(covariances.count, f"{name} ({kind})")


def bases_of(count: int, found: Mapping[str, Eigenbasis]) -> Bases:
    """Eigenbases sorted by what they are of, from their keys in the first pass's moments."""
    by_kind: dict[str, dict[str, Eigenbasis]] = {"A": {}, "S": {}, "block": {}}
    for key, basis in found.items():
        kind, name = key.split(":", 1)
        by_kind[kind][name] = basis
    return Bases(count, by_kind["A"], by_kind["S"], by_kind["block"])


class Fit:
    """The two passes, for callers that merge partial moments in between; see
    :func:`worker.curvature.factors.fit_factors`, whose arguments these are.

    Args:
        only: names of the layers to visit; all covered ones if None.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        seed: int,
        num_draws: int = 1,
        output_fisher: OutputFisher = "sampled",
        output_curvature: OutputCurvature = bernoulli_variance,
        bn: NormPolicy = "exact",
        only: Collection[str] | None = None,
    ) -> None:
        if output_fisher not in ("sampled", "exact"):
            raise ValueError(f"output_fisher must be 'sampled' or 'exact', not {output_fisher!r}")
        if output_fisher == "sampled" and output_curvature is not bernoulli_variance:
            raise ValueError("sampled labels are Bernoulli; another output_curvature needs output_fisher='exact'")
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1, not {num_draws}")
        self.model = model
        self.coverage: Coverage = survey(model, bn=bn, only=only)
        self.seed, self.num_draws, self.output_fisher, self.bn = seed, num_draws, output_fisher, bn
        self.like = next(model.parameters()).detach()
        self._output_curvature = output_curvature
        self._modules: dict[str, nn.Module] = {layer.name: layer.module for layer in self.coverage.all}

    def no_covariances(self) -> Moments[SecondMoment]:
        """The first pass's sums before any row."""
        sums: dict[str, SecondMoment] = {}
        for layer in self.coverage.layers:
            d_out, d_in = layer.parameters.shape
            sums[f"A:{layer.name}"], sums[f"S:{layer.name}"] = SecondMoment(d_in), SecondMoment(d_out)
        for grouped in self.coverage.grouped:
            d_out, d_in = grouped.shape
            sums[f"A:{grouped.name}"] = SecondMoment(d_in, grouped.groups)
            sums[f"S:{grouped.name}"] = SecondMoment(d_out, grouped.groups)
        for norm in self.coverage.norms:
            sums[f"block:{norm.name}"] = SecondMoment(2 * norm.module.num_features)
        return Moments(0, sums)

    def covariances(self, batches: Batches, progress: Progress = silent) -> Moments[SecondMoment]:
        """First pass: sums behind ``A`` (keys ``A:layer``), ``S`` (``S:layer``) and BatchNorm blocks
        (``block:layer``)."""
        moments = self.no_covariances()
        for batch in batches():
            moments = self.with_covariances(moments, batch)
            progress("covariances", moments.count)
        return moments

    def with_covariances(self, moments: Moments[SecondMoment], batch: Batch) -> Moments[SecondMoment]:
        """The first pass's sums with one more batch; the old ones are consumed."""
        sums = moments.sums
        capture, residuals = self._forward(batch)
        if moments.count == 0:
            self._check_gradients(batch)
        for block, gradients in enumerate(_gradients(capture, residuals)):
            for layer in self.coverage.layers:
                draws = gradients[layer.name]
                positions = layer.positions(draws[0])
                if block == 0:
                    for patches in self._patches(layer, capture, positions):
                        sums[f"A:{layer.name}"].add_rows(patches.flatten(0, 1))
                for gradient in draws:
                    rows = layer.gradient_rows(gradient).flatten(0, 1)
                    sums[f"S:{layer.name}"].add_rows(rows / positions**0.5)
            for grouped in self.coverage.grouped:
                rows_of_draws = [grouped.gradient_rows(gradient) for gradient in gradients[grouped.name]]
                self._add_grouped(sums, grouped, capture, rows_of_draws, first=block == 0)
            for norm in self.coverage.norms:
                for gradient in gradients[norm.name]:
                    rows = norm.sample_gradients(capture.input_of(norm.name), gradient)
                    sums[f"block:{norm.name}"].add_rows(rows)
        return Moments(moments.count + len(batch[0]), sums)

    def no_eigenvalues(self, bases: Bases) -> Moments[Tensor]:
        """The second pass's sums before any row."""
        sums: dict[str, Tensor] = {}
        for name, A in bases.A.items():
            S = bases.S[name]
            sums[name] = self.like.new_zeros(*S.values.shape, A.values.shape[-1])
        return Moments(0, sums)

    def corrected_eigenvalues(self, batches: Batches, bases: Bases, progress: Progress = silent) -> Moments[Tensor]:
        """Second pass: the sums behind ``Λ*`` by layer, in the given bases and with the same labels as in the
        first."""
        bases = self.cast(bases)
        moments = self.no_eigenvalues(bases)
        if moments.sums:
            for batch in batches():
                moments = self.with_eigenvalues(moments, batch, bases)
                progress("eigenvalues", moments.count)
        return moments

    def with_eigenvalues(self, moments: Moments[Tensor], batch: Batch, bases: Bases) -> Moments[Tensor]:
        """The second pass's sums with one more batch; the old ones are consumed. ``bases`` are of the model's type."""
        sums = moments.sums
        capture, residuals = self._forward(batch)
        for gradients in _gradients(capture, residuals):
            for layer in self.coverage.kronecker:
                draws = [layer.gradient_rows(gradient) for gradient in gradients[layer.name]]
                project = squared_projections if isinstance(layer, KroneckerLayer) else squared_projections_of_groups
                Q_A, Q_S = bases.A[layer.name].vectors, bases.S[layer.name].vectors
                start = 0
                for patches in self._patches(layer, capture, draws[0].shape[1]):
                    part = slice(start, start + len(patches))
                    sums[layer.name].add_(project(patches, [rows[part] for rows in draws], Q_A, Q_S))
                    start = part.stop
        return Moments(moments.count + len(batch[0]), sums)

    def cast(self, bases: Bases) -> Bases:
        """The bases on the model's device and in its floating type."""

        def moved(of: Mapping[str, Eigenbasis]) -> dict[str, Eigenbasis]:
            return {name: basis.to(self.like.device, self.like.dtype) for name, basis in of.items()}

        return Bases(bases.count, moved(bases.A), moved(bases.S), moved(bases.blocks))

    def _add_grouped(
        self,
        sums: Mapping[str, SecondMoment],
        layer: GroupedLayer,
        capture: Capture,
        draws: list[Tensor],
        *,
        first: bool,
    ) -> None:
        A, S = sums[f"A:{layer.name}"], sums[f"S:{layer.name}"]
        positions = draws[0].shape[1]
        start = 0
        for patches in self._patches(layer, capture, positions) if first or layer.depthwise else ():
            part = slice(start, start + len(patches))
            start = part.stop
            if not layer.depthwise:
                A.add_rows(patches.flatten(0, 1).transpose(0, 1))
            else:  # one output per group: the basis of its gradients themselves makes the group's block exact
                for rows in draws:
                    A.add_rows((rows[part] * patches).sum(1).transpose(0, 1))
        for rows in draws:
            S.add_rows(rows.flatten(0, 1).transpose(0, 1) / positions**0.5)

    def _check_gradients(self, batch: Batch) -> None:
        x, _, rows = batch
        few = x[:ROWS].to(self.like.device)

        def residual(logits: Tensor) -> Tensor:
            return sampled_residual(logits, None, rows[:ROWS], seed=self.seed, draw=0)

        require_explained_gradients(self.model, self.coverage, few, residual)

    def _forward(self, batch: Batch) -> tuple[Capture, list[Tensor]]:
        """A batch's recorded forward pass, and the residuals to send back."""
        x, mask, rows = batch
        if rows.shape != x.shape[:1]:
            raise ValueError(f"{x.shape[0]} samples need as many row indices, not {tuple(rows.shape)}")
        device = self.like.device
        capture = Capture(self.model, self._modules, x.to(device, non_blocking=True))
        known = None if mask is None else mask.to(device, non_blocking=True)
        return capture, self._residuals(capture.logits.detach(), known, rows)

    def _residuals(self, logits: Tensor, mask: Tensor | None, rows: Tensor) -> list[Tensor]:
        """Gradients at the logits whose outer products sum to the (estimated) output Fisher."""
        if self.output_fisher == "sampled":
            return [
                sampled_residual(logits, mask, rows, seed=self.seed, draw=draw) / self.num_draws**0.5
                for draw in range(self.num_draws)
            ]
        roots = masked_curvature(logits, mask, self._output_curvature).sqrt()
        return list(torch.diag_embed(roots).unbind(1))

    def _patches(self, layer: KroneckerLayer | GroupedLayer, capture: Capture, positions: int) -> Iterator[Tensor]:
        """The layer's patches ``[b, T, ...]``, some samples at a time."""
        x = capture.input_of(layer.name)
        for part in as_chunks(x.shape[0], rows_per_chunk(positions * layer.groups * layer.shape[1])):
            yield layer.patches(x[part])


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
