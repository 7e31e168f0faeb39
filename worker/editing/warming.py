"""Whether warm passes are worth their time after a step, and which of them to keep."""

from __future__ import annotations

import torch

from worker.curvature import vectors
from worker.data.tensors import LabelledImages
from worker.editing.bench import HELD_OUT_LIMIT, Bench, Step
from worker.editing.edited_data import EditedData
from worker.editing.repair import warm_pass
from worker.editing.step import Line

PAID = 1.02
"""The rest has paid for an edit when the held-out concept loss is this many times what it was."""

SHORT = 0.8
"""A step falls short when it goes less than this share of the way to the training level."""

WORTHWHILE = 0.05
"""A further pass is taken only if the last one went this share of the way."""


def warm(bench: Bench, data: EditedData, steps: list[Step], start: float) -> list[Step]:
    """Passes over a part of the edited data set where the step of ``learn`` or ``extend`` asks for them.

    Where the rest paid, a pass stays if it lowered the held-out loss. Where the step fell short, passes go on until
    the level is near or one gains little. A pass that did neither is undone.

    Args:
        steps: taken so far.
        start: held-out loss before the edit.
    """
    taught = [step for step in steps if step.phase in ("learn", "extend")]
    if not taught:
        return []
    lessons = data.lessons()
    touched = torch.cat([lessons.fixed, lessons.added])
    rows = bench.measured(lessons.after.take(touched))
    level = taught[-1].level
    origin = Line(bench.model, vectors.zeros_like(vectors.from_parameters(bench.model)))
    first, loss, held_out = taught[-1].loss_before, taught[-1].loss_after, bench.held_out_loss
    began, passes = loss, 0
    while passes < bench.settings.warm_passes:
        short = level is not None and first - loss < SHORT * (first - level)
        if not short and (passes or held_out <= PAID * start):
            break
        bench.progress("repair", passes, bench.settings.warm_passes)
        state = {name: value.clone() for name, value in bench.model.state_dict().items()}
        _pass(bench, lessons.after, touched, passes)
        passes += 1
        now, held_out_now = bench.loss(rows), bench.held_out_loss
        gained = level is not None and loss - now >= WORTHWHILE * (first - level)
        if not (held_out_now < held_out or (gained and held_out_now <= HELD_OUT_LIMIT * start)):
            bench.model.load_state_dict(state)
            break
        loss, held_out = now, held_out_now
        if not gained:
            break
    if not passes:
        return []
    return [Step("warm_pass", 1.0, origin.distance(), passes, 0.0, "warm_pass", level, began, loss)]


def _pass(bench: Bench, rows: LabelledImages, touched: torch.Tensor, number: int) -> None:
    warm_pass(
        bench.model,
        rows,
        touched,
        learning_rate=bench.settings.warm_rate * bench.training["learning_rate"],
        weight_decay=bench.weight_decay,
        batch_size=bench.training["batch_size"],
        seed=bench.settings.seed + number,
    )
