"""A whole fit: both passes and the eigenbases between them, for some layers at a time, from where it was interrupted,
by one process or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from worker.curvature.checkpoints import Checkpoint, Remaining, Stage, fingerprint
from worker.curvature.distribution import (
    Group,
    rank_and_size,
    shared_eigenbases,
    summed_covariances,
    summed_eigenvalues,
    true_everywhere,
)
from worker.curvature.eigen import Eigenbasis
from worker.curvature.layers import Coverage, NormLayer
from worker.curvature.moments import Moments, SecondMoment
from worker.curvature.passes import Bases, Batches, Fit, Progress, bases_of
from worker.curvature.precision import Precision

CHECKPOINT_SECONDS = 60.0
"""Between two writes, and before the first: a fit that ends sooner writes nothing, as starting it again costs less."""


@dataclass(frozen=True)
class Road:
    """How a fit gets done, apart from what is fitted; see :func:`worker.curvature.factors.fit_factors`."""

    batches: Batches
    progress: Progress
    checkpoint: Path | None = None
    group: Group | None = None
    precision: Precision | None = None
    part: int = 0

    def fitted(self, fit: Fit) -> tuple[Bases, Moments[Tensor]]:
        """The results of both passes over the rows of all processes."""
        saved = self._checkpoint(fit)
        bases = self._saved_bases(fit, saved)
        if bases is None:
            covariances = summed_covariances(self._covariances(fit, saved), fit.like, self.group)
            bases = shared_eigenbases(covariances, fit.like, self.group, self.progress)
            if saved is not None:
                saved.forget(self._stage("eigenvalues"))  # they are in other bases, where arithmetic does not repeat
                due = saved.due
                if due:
                    self._save_bases(saved, bases)
                if true_everywhere(due, fit.like, self.group):  # sums are kept until everyone has the bases
                    saved.forget(self._stage("covariances"))
        eigenvalues = self._eigenvalues(fit, bases, saved)
        return bases, summed_eigenvalues(eigenvalues, fit.like, self.group)

    def forget(self, fit: Fit) -> None:
        """Delete the checkpoint of a fit that is done everywhere."""
        true_everywhere(True, fit.like, self.group)
        saved = self._checkpoint(fit)
        if saved is not None:
            for stage in ("covariances", "bases", "eigenvalues"):
                saved.forget(self._stage(stage))

    def _covariances(self, fit: Fit, saved: Checkpoint | None) -> Moments[SecondMoment]:
        moments = fit.no_covariances()
        earlier = None if saved is None else saved.load(self._stage("covariances"), fit.like.device)
        if earlier is not None:
            _restore(moments, earlier)
            moments = Moments(earlier.count, moments.sums)
            if earlier.complete:
                return moments
        remaining = _remaining(self.batches, earlier)
        for batch in remaining:
            moments = fit.with_covariances(moments, batch)
            if saved is not None and saved.due:
                saved.save(self._stage("covariances"), _stage_of(moments, remaining, complete=False))
            self.progress("covariances", moments.count)
        if saved is not None and saved.due:
            saved.save(self._stage("covariances"), _stage_of(moments, remaining, complete=True))
        return moments

    def _eigenvalues(self, fit: Fit, bases: Bases, saved: Checkpoint | None) -> Moments[Tensor]:
        moments = fit.no_eigenvalues(bases)
        if not moments.sums:
            return moments
        earlier = None if saved is None else saved.load(self._stage("eigenvalues"), fit.like.device)
        if earlier is not None:
            # In the layers' order, not the file's: every process must sum over the group in the same.
            moments = Moments(earlier.count, {name: earlier.tensors[name] for name in moments.sums})
            if earlier.complete:
                return moments
        remaining = _remaining(self.batches, earlier)
        for batch in remaining:
            moments = fit.with_eigenvalues(moments, batch, bases)
            if saved is not None and saved.due:
                self._save_bases(saved, bases)
                content = Stage(moments.count, remaining.rows_sha256, False, moments.sums)
                saved.save(self._stage("eigenvalues"), content)
            self.progress("eigenvalues", moments.count)
        if saved is not None and saved.due:
            self._save_bases(saved, bases)
            saved.save(self._stage("eigenvalues"), Stage(moments.count, remaining.rows_sha256, True, moments.sums))
        return moments

    def _save_bases(self, saved: Checkpoint, bases: Bases) -> None:
        if not saved.holds(self._stage("bases")):
            saved.save(self._stage("bases"), Stage(bases.count, "", True, _bases_state(bases)))

    def _saved_bases(self, fit: Fit, saved: Checkpoint | None) -> Bases | None:
        """The bases of an earlier attempt, if every process has them."""
        if saved is None:
            return None
        earlier = saved.load(self._stage("bases"), fit.like.device)
        if not true_everywhere(earlier is not None, fit.like, self.group) or earlier is None:
            return None
        found: dict[str, Eigenbasis] = {}
        for key in fit.no_covariances().sums:
            found[key] = Eigenbasis(earlier.tensors[f"{key}|vectors"], earlier.tensors[f"{key}|values"])
        return bases_of(earlier.count, found)

    def _checkpoint(self, fit: Fit) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        rank, size = rank_and_size(self.group)
        settings = {
            "seed": fit.seed,
            "num_draws": fit.num_draws,
            "output_fisher": fit.output_fisher,
            "bn": fit.bn,
            "precision": self.precision,
            "part": self.part,
            "layers": [layer.name for layer in fit.coverage.all],
            "process": [rank, size],
        }
        folder = self.checkpoint if self.group is None else self.checkpoint / f"process-{rank}"
        return Checkpoint(folder, fingerprint(fit.model, settings), CHECKPOINT_SECONDS)

    def _stage(self, name: str) -> str:
        return f"part-{self.part}-{name}"


def parts_within(coverage: Coverage, limit: int | None, bytes_per_number: int) -> Sequence[tuple[str, ...]]:
    """Names of layers to fit together, in the model's order, so that each part's sums and bases take at most ``limit``
    bytes where that can be: a layer is never divided."""
    parts: list[list[str]] = [[]]
    used = 0
    for layer in coverage.all:
        if isinstance(layer, NormLayer):
            numbers = 2 * (2 * layer.module.num_features) ** 2
        else:
            d_out, d_in = layer.shape
            numbers = layer.groups * (2 * d_in**2 + 2 * d_out**2 + d_out * d_in)
        size = numbers * bytes_per_number
        if parts[-1] and limit is not None and used + size > limit:
            parts.append([])
            used = 0
        parts[-1].append(layer.name)
        used += size
    return [tuple(part) for part in parts]


def _remaining(batches: Batches, earlier: Stage | None) -> Remaining:
    return Remaining(batches) if earlier is None else Remaining(batches, earlier.count, earlier.rows_sha256)


def _stage_of(moments: Moments[SecondMoment], remaining: Remaining, *, complete: bool) -> Stage:
    tensors = {f"{key}|{kind}": value for key, moment in moments.sums.items() for kind, value in moment.state.items()}
    return Stage(moments.count, remaining.rows_sha256, complete, tensors)


def _restore(moments: Moments[SecondMoment], earlier: Stage) -> None:
    for key, moment in moments.sums.items():
        moment.restore(
            {kind: earlier.tensors[f"{key}|{kind}"] for kind in ("total", "rows") if f"{key}|{kind}" in earlier.tensors}
        )


def _bases_state(bases: Bases) -> Mapping[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for kind, of in (("A", bases.A), ("S", bases.S), ("block", bases.blocks)):
        for name, basis in of.items():
            tensors[f"{kind}:{name}|vectors"], tensors[f"{kind}:{name}|values"] = basis.vectors, basis.values
    return tensors
