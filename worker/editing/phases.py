"""The movements of an edit, each a direction and a measured length: drop, extend, learn, forget.

Each moves the model in place and says what it did. They work on disjoint rows of one edited data set, so their order
is a choice: what must be learned comes first, and forgetting last, because learning drifts back towards membership.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses, predict_logits
from worker.curvature import vectors
from worker.curvature.factors import Factors
from worker.curvature.solve import Solution
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData
from worker.editing.gradients import after_gradient, edit_gradient
from worker.editing.length import Estimate, Trial, best_trial, combined_error, combined_rise, scale_reaching
from worker.editing.repair import warm_pass as take_warm_pass
from worker.editing.step import Curvature, Line

Progress = Callable[[str, int, int], None]

FEW_ROWS = 50
"""Below this, rows are compared with rows of their own class: a handful is no sample of the whole."""

CONTROL_ROWS = 160
CONTROL_GROUPS = 4
CONTROL_LOG_ERROR = 0.3
"""Scales of equal groups vary by about this much in their logarithm (measured on small nets), sampling error aside."""

LEARNING_SCALES = (0.0, 0.0625, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0, 1.5)

DROPPING_SCALES = (0.0, 0.03, 0.06, 0.125, 0.25)
EXTENDING_SCALES = (0.0, 0.125, 0.25, 0.5, 1.0)

HELD_OUT_LIMIT = 1.1
"""A step may cost this much of the held-out concept loss, whatever it still has to reach."""


@dataclass(frozen=True)
class Settings:
    """How steps are computed.

    Attributes:
        iterations: of conjugate gradients, one exact product each.
        curvature_rows: rows the products average over.
        sample_rows: of untouched rows that stand for all of them in large sums.
        learning_rounds: re-linearised steps at most, before warm passes go the rest of the way.
        forgetting_rounds: re-linearised steps at most.
        warm_passes: of half an epoch each at most, when steps alone do not teach the edited rows.
        warm_rate: learning rate of such a pass, as a share of the training's.
        damping: ``d``; None takes the weight decay, at least a tenth of the factors' mean eigenvalue.
        seed: of every sample drawn.
    """

    iterations: int = 8
    curvature_rows: int = 256
    sample_rows: int = 1024
    learning_rounds: int = 1
    forgetting_rounds: int = 2
    warm_passes: int = 8
    warm_rate: float = 0.1
    damping: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Bench:
    """What every phase needs: the model it moves, and what it measures and solves with."""

    model: ConceptPredictor
    factors: Factors
    calibration: LabelledImages
    training: Mapping[str, Any]
    settings: Settings
    progress: Progress

    @property
    def weight_decay(self) -> float:
        return float(self.training["weight_decay"])

    @property
    def damping(self) -> float:
        if self.settings.damping is not None:
            return self.settings.damping
        return max(self.weight_decay, 0.1 * self.factors.mean_eigenvalue)

    def losses(self, rows: LabelledImages) -> Tensor:
        """Concept losses ``[n]`` of rows under the model as it is now."""
        return concept_losses(predict_logits(self.model, rows.images), rows.concepts)

    def loss(self, rows: LabelledImages) -> float:
        return float(self.losses(rows).mean()) if len(rows) else 0.0

    def sample(self, positions: Tensor) -> Tensor:
        """At most ``sample_rows`` of the positions, chosen by the seed."""
        return _chosen(positions, self.settings.sample_rows, self.settings.seed)

    def solve(self, u: ParameterVector, data: EditedData) -> Solution:
        """The direction for ``u`` with curvature over a sample of the edited data set."""
        rows, weights = curvature_sample(data, self.settings.curvature_rows, self.settings.seed)
        curvature = Curvature(self.model, rows, weights, self.factors, self.damping, data.dropped)
        return curvature.solve(
            u,
            iterations=self.settings.iterations,
            progress=lambda done, total: self.progress("solving", done, total),
        )


def curvature_sample(data: EditedData, size: int, seed: int) -> tuple[LabelledImages, Tensor]:
    """Rows of the edited data set for curvature products, and their weights (mean 1).

    Corrected and added rows come first, up to half the size: the step goes where their gradients point, and without
    their own curvature nothing but the damping would hold it there. Weights make the weighted mean that of all rows.
    """
    touched = torch.cat([data.fixed, data.added])
    chosen = [_chosen(touched, size // 2, seed)]
    chosen.append(_chosen(data.untouched, size - len(chosen[0]), seed))
    total = sum(len(positions) for positions in chosen)
    weights = [
        torch.full((len(some),), len(whole) / len(some) * total / len(data.after), device=data.after.images.device)
        for some, whole in zip(chosen, (touched, data.untouched), strict=True)
        if len(some)
    ]
    return data.after.take(torch.cat(chosen)), torch.cat(weights)


@dataclass(frozen=True)
class Level:
    """A mean loss to reach, with one standard error to either side."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Step:
    """One step that was taken; ``unseen`` is the level of unseen rows with its interval.

    ``iterations`` are of conjugate gradients, or half epochs of a warm pass.
    """

    phase: str
    scale: float
    norm: float
    iterations: int
    relative_residual: float
    stop: str
    level: float | None
    loss_before: float
    loss_after: float
    unseen: Level | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def learn(bench: Bench, data: EditedData) -> list[Step]:
    """Make corrected and added rows look like training rows: their loss falls to the training level and no further.

    Each round steps along ``u(θ) = ∇J_before(θ̂) − ∇J_after(θ)`` at where the model is, until the level is reached or
    a round gains little.
    """
    data = data.lessons()
    rows = data.after.take(torch.cat([data.fixed, data.added]))
    if not len(rows):
        return []
    sample = bench.sample(data.untouched)
    # Where every row is touched, none says what a training row's loss is but the rows as they were.
    level = _level(bench, rows, data.after.take(sample) if len(sample) else data.masked(data.before))
    bench.progress("gradient", 0, 1)
    first = edit_gradient(bench.model, data, sample)
    after_at_start = after_gradient(bench.model, data, sample, bench.weight_decay)
    held_out_limit = HELD_OUT_LIMIT * bench.loss(bench.calibration)
    steps: list[Step] = []
    for number in range(bench.settings.learning_rounds):
        before = bench.loss(rows)
        if before <= level:
            break
        u = first
        if number:
            after_now = after_gradient(bench.model, data, sample, bench.weight_decay)
            u = vectors.axpy(1.0, first, vectors.axpy(-1.0, after_now, after_at_start))
        solution = bench.solve(u, data)
        line = Line(bench.model, solution.vector)
        chosen = _falling(bench, line, rows, level, held_out_limit)
        steps.append(_step("learn", line, chosen.scale, solution, level, before, chosen.edited))
        gain = (before - chosen.edited) / (before - level)
        if chosen.scale == 0.0 or gain < 0.1:
            break
    return steps + _warm_passes(bench, data, rows, vectors.axpy(1.0, first, after_at_start), level, held_out_limit)


def _warm_passes(
    bench: Bench,
    data: EditedData,
    rows: LabelledImages,
    unfinished: ParameterVector,
    level: float,
    held_out_limit: float,
) -> list[Step]:
    """Half epochs over the edited data set until the edited rows reach the level; the best acceptable one is kept.

    On small well-fitted nets a second step's direction breaks the model, while warm passes from the first step's end
    go the rest of the way.
    """
    start = bench.loss(rows)
    limit = max(held_out_limit, bench.loss(bench.calibration))
    line = Line(bench.model, vectors.zeros_like(vectors.from_parameters(bench.model)))
    best, best_parameters, passes = start, vectors.from_parameters(bench.model), 0
    while best > 1.05 * level and passes < bench.settings.warm_passes:
        bench.progress("repair", passes, bench.settings.warm_passes)
        warm_pass(bench, data.after, unfinished, share=0.5, seed=bench.settings.seed + passes)
        passes += 1
        now = bench.loss(rows)
        if now < best and bench.loss(bench.calibration) <= limit:
            best, best_parameters = now, vectors.from_parameters(bench.model)
    if not passes:
        return []
    line.to(best_parameters)
    return [Step("warm_pass", 1.0, line.distance(), passes, 0.0, "warm_pass", level, start, best)]


def drop(bench: Bench, data: EditedData) -> list[Step]:
    """Let the kept concepts use what the dropped ones no longer need: a short step of the kept objective.

    The direction is ``−∇J_after``, not the difference of gradients, and the length is where the held-out loss of the
    kept concepts is least; at worst 0, which plainly deletes the concepts' rows.
    """
    if not data.dropped:
        return []
    bench.progress("gradient", 0, 1)
    sample = bench.sample(data.untouched)
    u = vectors.scale(-1.0, after_gradient(bench.model, data, sample, bench.weight_decay))
    return [_least_held_out(bench, "drop", u, data, DROPPING_SCALES)]


def extend(bench: Bench, data: EditedData) -> list[Step]:
    """Let the backbone serve new concepts too: along the gradient that their labels add, to the least held-out loss.

    Their rows of the head are fitted already; at worst the step has length 0, and they stay the only change.
    """
    if not data.new:
        return []
    bench.progress("gradient", 0, 1)
    extension = data.extension()
    u = edit_gradient(bench.model, extension, bench.sample(extension.untouched))
    return [_least_held_out(bench, "extend", u, extension, EXTENDING_SCALES)]


def _least_held_out(bench: Bench, phase: str, u: ParameterVector, data: EditedData, scales: tuple[float, ...]) -> Step:
    before = bench.loss(bench.calibration)
    solution = bench.solve(u, data)
    line = Line(bench.model, solution.vector)
    trials = _trials(bench, line, bench.calibration, scales)
    chosen = min((t for t in trials if math.isfinite(t.held_out)), key=lambda trial: trial.held_out)
    line.at(chosen.scale)
    return _step(phase, line, chosen.scale, solution, None, before, chosen.held_out)


def forget(bench: Bench, data: EditedData, level: Level | None = None) -> list[Step]:
    """Make removed rows look like rows never seen: their loss rises to the level of unseen rows and no further.

    Args:
        level: of unseen rows; estimated where it is None.
    """
    rows = data.masked(data.before.take(data.removed))
    if not len(rows):
        return []
    forgetting = EditedData(data.after.joined(rows), data.after, data.dropped)
    held_out_limit = HELD_OUT_LIMIT * bench.loss(bench.calibration)
    steps: list[Step] = []
    for _ in range(bench.settings.forgetting_rounds):
        before = bench.loss(rows)
        if level is not None and before >= 0.97 * level.value:
            break
        bench.progress("gradient", 0, 1)
        solution = bench.solve(_removal_gradient(bench, forgetting), forgetting)
        line = Line(bench.model, solution.vector)
        if level is None:
            level = _unseen_level(bench, forgetting, rows, line)
        bench.progress("line_search", 0, 1)
        most = scale_reaching(partial(_held_out_at, bench, line), held_out_limit, most=2.0)
        scale = scale_reaching(partial(_loss_at, bench, line, rows=rows), level.value, most=most)
        after = _loss_at(bench, line, scale, rows)
        steps.append(_step("forget", line, scale, solution, level.value, before, after, level))
        if scale == 0.0 or after - before < 0.1 * (level.value - before):
            break
    return steps


def warm_pass(bench: Bench, rows: LabelledImages, unfinished: ParameterVector, *, share: float, seed: int) -> int:
    """A short warm pass with the model's own training settings; see :mod:`worker.editing.repair`."""
    return take_warm_pass(
        bench.model,
        rows,
        unfinished,
        learning_rate=bench.settings.warm_rate * bench.training["learning_rate"],
        weight_decay=bench.weight_decay,
        batch_size=bench.training["batch_size"],
        share=share,
        seed=seed,
    )


def _removal_gradient(bench: Bench, data: EditedData) -> ParameterVector:
    return edit_gradient(bench.model, data, bench.sample(data.untouched))


def _unseen_level(bench: Bench, data: EditedData, rows: LabelledImages, line: Line) -> Level:
    """The mean loss that the removed rows should have, were they never seen.

    The held-out level is right on average, and for many rows that is enough. The mean of a few hangs on the hardest of
    them, and how hard these rows are only they can tell. So control groups of as many kept rows are removed in thought:
    the one scale at which *their* losses reach the held-out level says how far along their own direction the removed
    rows should go. Both estimates are combined by their errors, which also make the interval.
    """
    start = bench.loss(rows)
    held_out = bench.losses(bench.calibration)
    level = _level(bench, rows, bench.calibration)
    if not start < level:
        return Level(start, start, start)
    spread = float(held_out.std(correction=0) / held_out.mean()) or 1.0  # one row alone tells nothing of others
    error = spread / len(rows) ** 0.5
    groups = min(CONTROL_GROUPS, CONTROL_ROWS // len(rows) + 1)
    estimates = [Estimate(level - start, error)]
    if len(rows) < FEW_ROWS and len(rows) * groups <= len(data.untouched) // 2:
        scale = _control_scale(bench, data, len(rows), groups, float(held_out.mean()))
        predicted = _loss_at(bench, line, scale, rows)
        line.at(0.0)
        control_error = (CONTROL_LOG_ERROR**2 + spread**2 / (groups * len(rows))) ** 0.5
        estimates.append(Estimate(predicted - start, control_error))
    rise, error = combined_rise(estimates), combined_error(estimates)
    return Level(start + rise, start + rise * math.exp(-error), start + rise * math.exp(error))


def _control_scale(bench: Bench, data: EditedData, size: int, groups: int, level: float) -> float:
    generator = torch.Generator().manual_seed(bench.settings.seed)
    order = torch.randperm(len(data.after), generator=generator).to(data.after.sample_ids.device)
    controls: list[tuple[Line, LabelledImages]] = []
    for g in range(groups):
        leaving, staying = order[g * size : (g + 1) * size], torch.cat([order[: g * size], order[(g + 1) * size :]])
        thought = EditedData(data.after, data.after.take(staying.sort().values), data.dropped)
        solution = bench.solve(_removal_gradient(bench, thought), thought)
        controls.append((Line(bench.model, solution.vector), data.after.take(leaving)))

    def loss(scale: float) -> float:
        return sum(_loss_at(bench, line, scale, rows) for line, rows in controls) / len(controls)

    scale = scale_reaching(loss, level, most=2.0, iterations=8)
    controls[0][0].at(0.0)
    return scale


def _level(bench: Bench, rows: LabelledImages, reference: LabelledImages) -> float:
    """Mean loss that ``rows`` would have, were each of their known labels like the reference rows' known labels.

    Where ``rows`` are few, they are compared with reference rows of their own class.
    """
    losses, known = bench.losses(reference), _known_labels(reference)
    wanted = _known_labels(rows)
    overall = losses.sum() / known.sum().clamp_min(1)
    if len(rows) >= FEW_ROWS:
        return float(overall * wanted.mean())
    levels = []
    for label, labels in zip(rows.classes, wanted, strict=True):
        same = reference.classes == label
        levels.append(labels * (losses[same].sum() / known[same].sum() if known[same].any() else overall))
    return float(torch.stack(levels).mean())


def _known_labels(rows: LabelledImages) -> Tensor:
    """How many concept labels of each row are known ``[n]``."""
    return (rows.concepts != UNKNOWN).sum(dim=1).to(rows.images.dtype)


def _falling(bench: Bench, line: Line, rows: LabelledImages, level: float, held_out_limit: float) -> Trial:
    bench.progress("line_search", 0, 1)
    trials = _trials(bench, line, rows, LEARNING_SCALES)
    chosen = best_trial(trials, level=level, held_out_limit=held_out_limit)
    earlier = [trial for trial in trials if trial.scale < chosen.scale]
    if chosen.edited < level and earlier:
        # Between the last scale above the level and the first below it: no further than asked.
        low, high = earlier[-1].scale, chosen.scale
        scale = low + scale_reaching(lambda s: -_loss_at(bench, line, low + s, rows=rows), -level, most=high - low)
        finer = _trials(bench, line, rows, (scale,))[0]
        if finer.held_out <= held_out_limit:
            chosen = finer
    line.at(chosen.scale)
    return chosen


def _trials(bench: Bench, line: Line, rows: LabelledImages, scales: tuple[float, ...]) -> list[Trial]:
    return [
        Trial(scale, _loss_at(bench, line, scale, rows), _loss_at(bench, line, scale, bench.calibration))
        for scale in scales
    ]


def _held_out_at(bench: Bench, line: Line, scale: float) -> float:
    return _loss_at(bench, line, scale, bench.calibration)


def _loss_at(bench: Bench, line: Line, scale: float, rows: LabelledImages) -> float:
    line.at(scale)
    return bench.loss(rows)


def _step(
    phase: str,
    line: Line,
    scale: float,
    solution: Solution,
    level: float | None,
    before: float,
    after: float,
    unseen: Level | None = None,
) -> Step:
    return Step(
        phase=phase,
        scale=scale,
        norm=scale * vectors.norm(line.direction),
        iterations=solution.iterations,
        relative_residual=solution.relative_residual,
        stop=str(solution.stop),
        level=level,
        loss_before=before,
        loss_after=after,
        unseen=unseen,
    )


def _chosen(positions: Tensor, size: int, seed: int) -> Tensor:
    if len(positions) <= size:
        return positions
    generator = torch.Generator().manual_seed(seed)
    return positions[torch.randperm(len(positions), generator=generator)[:size].to(positions.device)]
