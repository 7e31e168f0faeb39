"""New concepts: a step of the whole net for what the head's new rows alone cannot do.

Concepts that leave need none: a step of the kept objective, short or long, left the kept concepts as they were on every
net that was measured.
"""

from __future__ import annotations

import math

import torch

from worker.cbm.training import concept_losses
from worker.editing.bench import Bench, Step, step_taken
from worker.editing.edited_data import EditedData
from worker.editing.gradients import edit_gradient
from worker.editing.step import Line

SCALES = (0.25, 0.5, 1.0)

SERVED = 1.2
"""The features serve a new concept when its held-out loss is at most this many times that of the others."""


def extend(bench: Bench, data: EditedData) -> list[Step]:
    """Let the backbone serve new concepts too: along the gradient that their labels add, to the least held-out loss.

    Their rows of the head are fitted already. Where the features serve them as well as the others there is nothing to
    do; at worst the step has length 0, and the rows stay the only change.
    """
    if not data.new or _served(bench, data):
        return []
    bench.progress("gradient", 0, 1)
    extension = data.extension()
    u = edit_gradient(bench.twin.now(), extension, bench.sample(extension.untouched))
    before = bench.held_out_loss
    solution = bench.solve(u, extension, bench.settings.learning_iterations)
    line = Line(bench.model, solution.vector)
    best, least = 0.0, before
    for scale in SCALES:
        line.at(scale)
        loss = bench.held_out_loss
        if not math.isfinite(loss) or loss >= least:
            break
        best, least = scale, loss
    line.at(best)
    return [step_taken("extend", line, best, solution, None, before, least)]


def _served(bench: Bench, data: EditedData) -> bool:
    """Whether held-out rows' labels of new concepts cost about as much as those of the others, each."""
    concepts = bench.calibration.concepts
    new = torch.zeros(concepts.shape[1], dtype=torch.bool, device=concepts.device)
    new[list(data.new)] = True
    theirs, others = (
        float(concept_losses(bench.held_out[:, part], concepts[:, part]).sum() / (concepts[:, part] >= 0).sum())
        for part in (new, ~new)
    )
    return theirs <= SERVED * others  # not where either has no known label: then nothing says so
