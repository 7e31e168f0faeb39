"""Concepts leave and come: a step of the whole net for what the head's rows alone cannot do."""

from __future__ import annotations

import math

from worker.curvature import vectors
from worker.curvature.vectors import ParameterVector
from worker.editing.bench import Bench, Step, step_taken
from worker.editing.edited_data import EditedData
from worker.editing.gradients import after_gradient, edit_gradient
from worker.editing.step import Line

DROPPING_SCALES = (0.03, 0.125)
EXTENDING_SCALES = (0.25, 0.5, 1.0)


def drop(bench: Bench, data: EditedData) -> list[Step]:
    """Let the kept concepts use what the dropped ones no longer need: a short step of the kept objective.

    The direction is ``−∇J_after``, not the difference of gradients, and the length is where the held-out loss of the
    kept concepts is least; at worst 0, which plainly deletes the concepts' rows.
    """
    if not data.dropped:
        return []
    bench.progress("gradient", 0, 1)
    sample = bench.sample(data.untouched)
    u = vectors.scale(-1.0, after_gradient(bench.twin.now(), data, sample, bench.weight_decay))
    return [_least_held_out(bench, "drop", u, data, DROPPING_SCALES)]


def extend(bench: Bench, data: EditedData) -> list[Step]:
    """Let the backbone serve new concepts too: along the gradient that their labels add, to the least held-out loss.

    Their rows of the head are fitted already; at worst the step has length 0, and they stay the only change.
    """
    if not data.new:
        return []
    bench.progress("gradient", 0, 1)
    extension = data.extension()
    u = edit_gradient(bench.twin.now(), extension, bench.sample(extension.untouched))
    return [_least_held_out(bench, "extend", u, extension, EXTENDING_SCALES)]


def _least_held_out(bench: Bench, phase: str, u: ParameterVector, data: EditedData, scales: tuple[float, ...]) -> Step:
    """Walks up the scales as long as the held-out loss falls."""
    before = bench.held_out_loss
    solution = bench.solve(u, data, bench.settings.learning_iterations)
    line = Line(bench.model, solution.vector)
    best, least = 0.0, before
    for scale in scales:
        line.at(scale)
        loss = bench.held_out_loss
        if not math.isfinite(loss) or loss >= least:
            break
        best, least = scale, loss
    line.at(best)
    return step_taken(phase, line, best, solution, None, before, least)
