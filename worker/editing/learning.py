"""Corrected and added rows are learned: a step of the whole net, to their level as far as it goes."""

from __future__ import annotations

import torch

from worker.editing.bench import HELD_OUT_LIMIT, Bench, Step, known_labels, per_label, step_taken
from worker.editing.edited_data import EditedData
from worker.editing.gradients import edit_gradient
from worker.editing.length import falling_to
from worker.editing.step import Line
from worker.editing.unseen import level_elsewhere

SCALES = (0.0, 1.0, 1.5, 2.0)
"""Three iterations of conjugate gradients stop short of the solution, so twice their length is not far."""


def learn(bench: Bench, data: EditedData) -> list[Step]:
    """Make corrected and added rows look like training rows: their loss falls to the training level and no further.

    The step is along ``u = ∇J_before(θ̂) − ∇J_after(θ̂)``. A second one does not pay: its gradient is of the whole
    objective, and what a sample of a hundred rows says of that breaks the model.
    """
    data = data.lessons()
    rows = data.after.take(torch.cat([data.fixed, data.added]))
    if not len(rows):
        return []
    level = _training_level(bench, data)
    rows = bench.measured(rows)
    before = bench.loss(rows)
    if before <= level:
        return []
    bench.progress("gradient", 0, 1)
    u = edit_gradient(bench.twin.now(), data, bench.sample(data.untouched))
    limit = HELD_OUT_LIMIT * bench.held_out_loss
    solution = bench.solve(u, data, bench.settings.learning_iterations)
    line = Line(bench.model, solution.vector)
    bench.progress("line_search", 0, 1)

    def edited(scale: float) -> float:
        line.at(scale)
        return bench.loss(rows) if scale else before

    def held_out(scale: float) -> float:
        line.at(scale)
        return bench.held_out_loss

    place = falling_to(edited, held_out, SCALES, level=level, held_out_limit=limit)
    line.at(place.scale)
    return [step_taken("learn", line, place.scale, solution, level, before, place.edited)]


def _training_level(bench: Bench, data: EditedData) -> float:
    """The mean loss that the rows should have, were they trained on.

    Of added rows it is told from their loss as unseen ones. Corrected rows were trained on, with another label; they
    are taken for training rows like any other.
    """
    sample = bench.sample(data.untouched)
    # Where every row is touched, none says what a training row's loss is but the rows as they were.
    reference = data.after.take(sample) if len(sample) else data.before
    trained = per_label(bench.losses(reference), reference)
    fixed, added = data.after.take(data.fixed), data.after.take(data.added)
    total = float(trained.mean() * known_labels(fixed).sum())
    if len(added):
        held_out = per_label(bench.held_out_losses, bench.calibration)
        some = bench.measured(added)
        level = level_elsewhere(per_label(bench.losses(some), some), held_out, trained).value
        total += level * float(known_labels(added).sum())
    return total / (len(fixed) + len(added))
