"""Removed rows are forgotten: their loss rises to what it would be, had they never been seen."""

from __future__ import annotations

from torch import Tensor

from worker.data.tensors import LabelledImages
from worker.editing.bench import Bench, Step, known_labels, per_label, step_taken
from worker.editing.edited_data import EditedData
from worker.editing.gradients import edit_gradient
from worker.editing.length import scale_reaching
from worker.editing.step import Line
from worker.editing.unseen import Level, level_elsewhere

MOST = 4.0
"""The longest step, in full lengths."""

LIMIT = 1.2
"""A step may cost this much of the held-out concept loss; what it costs is mostly shares of positive rows, which the
polish of the head puts back."""


def forget(bench: Bench, data: EditedData, level: Level | None = None) -> list[Step]:
    """Make removed rows look like rows never seen: their loss rises to the level of unseen rows and no further.

    Args:
        level: of unseen rows; estimated where it is None.
    """
    rows = data.masked(data.before.take(data.removed))
    if not len(rows):
        return []
    forgetting = EditedData(data.after.joined(rows), data.after, data.dropped)
    rows = bench.measured(rows)
    losses = bench.losses(rows)
    before = float(losses.mean())
    if level is None:
        level = _unseen_level(bench, forgetting, rows, losses)
    if before >= 0.97 * level.value:
        return []
    bench.progress("gradient", 0, 1)
    u = edit_gradient(bench.twin.now(), forgetting, bench.sample(forgetting.untouched))
    limit = LIMIT * bench.held_out_loss
    solution = bench.solve(u, forgetting)
    line = Line(bench.model, solution.vector)
    bench.progress("line_search", 0, 1)

    def removed(scale: float) -> float:
        line.at(scale)
        return bench.loss(rows) if scale else before

    def held_out(scale: float) -> float:
        line.at(scale)
        return bench.held_out_loss

    scale = scale_reaching(removed, level.value, most=MOST, iterations=4)
    if scale and not held_out(scale) <= limit:
        scale = scale_reaching(held_out, limit, most=scale, iterations=3)
    after = removed(scale)
    return [step_taken("forget", line, scale, solution, level.value, before, after, level)]


def _unseen_level(bench: Bench, data: EditedData, rows: LabelledImages, losses: Tensor) -> Level:
    """The mean loss that the removed rows should have, were they never seen; see :mod:`worker.editing.unseen`.

    Args:
        losses: of the removed rows, now.
    """
    start = float(losses.mean())
    reference = data.after.take(bench.sample(data.untouched))
    known = known_labels(rows)
    told = known > 0
    if not told.any() or not len(reference):
        return Level(start, start, start)
    level = level_elsewhere(
        per_label(losses, rows)[told],
        per_label(bench.losses(reference), reference),
        per_label(bench.held_out_losses, bench.calibration),
    )
    labels = float(known.mean())
    return Level(*(max(start, labels * value) for value in (level.value, level.low, level.high)))
