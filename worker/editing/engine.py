"""One edit end to end, on tensors: from a model and an edited data set to the edited model and what was done."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from worker.cbm.arithmetic import Twin
from worker.cbm.concept_predictor import HEAD, ConceptPredictor, with_head_rows
from worker.cbm.label_predictor import LabelPredictor, closed_form_edit, fit_label_predictor
from worker.cbm.metrics import concept_metrics, label_metrics
from worker.cbm.training import predict_logits
from worker.curvature import vectors
from worker.curvature.factors import Factors
from worker.curvature.surgery import drop_outputs
from worker.data.tensors import LabelledImages
from worker.editing.bench import Bench, Progress, Settings, Step, chosen
from worker.editing.concepts import extend
from worker.editing.edited_data import EditedData
from worker.editing.forgetting import forget
from worker.editing.gradients import after_gradient, edit_gradient, objective_gradient_norm
from worker.editing.growth import grown, grown_factors, grown_label_predictor
from worker.editing.guard import (
    EditRefused,
    refusal_of,
    require_classes,
    require_finite,
    require_gain,
    require_near,
    require_utility,
)
from worker.editing.learning import learn
from worker.editing.polishing import before_edit, polish
from worker.editing.step import Line, inverse_factors, recompute_statistics
from worker.editing.withdrawing import withdraw


@dataclass(frozen=True)
class EditInput:
    """Attributes:
    model: the base version's concept predictor; not modified.
    label_predictor: the base version's.
    factors: EK-FAC factors that cover every trainable parameter of ``model``.
    data: training rows before and after, in the frame's columns: the base version's, then those of new concepts.
    calibration: held-out rows of the edited data set, in the frame's columns, dropped concepts unknown.
    concepts: names of the frame's columns.
    classes: names of the classes.
    training: the model's training settings.
    """

    model: ConceptPredictor
    label_predictor: LabelPredictor
    factors: Factors
    data: EditedData
    calibration: LabelledImages
    concepts: list[str]
    classes: list[str]
    training: Mapping[str, Any]


@dataclass(frozen=True)
class EditOutcome:
    """The edited model, its head without the dropped concepts' rows, and the numbers of the edit.

    ``factors`` fit the edited model's head: what a child version inherits. ``refusal`` is the guard's, if it found
    that this must not become a version.
    """

    model: ConceptPredictor
    label_predictor: LabelPredictor
    factors: Factors
    report: dict[str, Any]
    refusal: EditRefused | None = None


@dataclass
class Timings:
    """Seconds per stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str):  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def edit(
    given: EditInput,
    *,
    method: Literal["solve", "closed_form"],
    label_solver: Literal["converged", "closed_form"],
    tolerance: Mapping[str, float],
    settings: Settings,
    progress: Progress,
) -> EditOutcome:
    """Edit the model so that it is as if it had been trained on the edited data set.

    Raises:
        EditRefused: the guard found that held-out quality fell, nothing was gained, or a class would be empty.
    """
    outcome = attempt(
        given,
        method=method,
        label_solver=label_solver,
        tolerance=tolerance,
        settings=settings,
        progress=progress,
    )
    if outcome.refusal is not None:
        raise outcome.refusal
    return outcome


def attempt(
    given: EditInput,
    *,
    method: Literal["solve", "closed_form"],
    label_solver: Literal["converged", "closed_form"],
    tolerance: Mapping[str, float],
    settings: Settings,
    progress: Progress,
) -> EditOutcome:
    """As :func:`edit`, but what the guard refuses after measuring it is shown with its refusal.

    Raises:
        EditRefused: a class would be empty, or the model is broken, so that there is nothing to show.
    """
    require_classes(given.data.before.classes, given.data.after.classes, given.classes)
    timings = Timings()
    with timings.stage("preparing"):
        model, factors = _prepared(given)
        bench = Bench(model, factors, given.calibration, given.training, settings, progress)
        start = Twin(given.model).logits(given.calibration.images) if given.data.new else bench.held_out
        origin = vectors.from_parameters(model)
        kept = given.data.after.images
        everyone = torch.arange(len(kept), device=kept.device)
        norm_rows = given.data.after.take(chosen(everyone, settings.norm_rows, settings.seed))
        gradient_before = objective_gradient_norm(bench.twin.now(), norm_rows, bench.weight_decay)
        untouched = before_edit(bench, given.data)
        if len(given.data.removed):
            recompute_statistics(model, kept[chosen(everyone, settings.statistics_rows, settings.seed)])
    if method == "closed_form":
        with timings.stage("solving"):
            steps = [_closed_form_step(bench, given.data)]
            logits = predict_logits(with_head_rows(model, _kept(given)), kept)
    else:
        steps = _moved(bench, given.data, timings)
        with timings.stage("polish"):
            polished = polish(bench, given.data, steps, untouched)
            steps += polished.steps
            logits = polished.logits[:, _kept(given)]
    step_norm = vectors.norm(vectors.axpy(-1.0, origin, vectors.from_parameters(model)))
    edited = with_head_rows(model, _kept(given))
    with timings.stage("label_predictor"):
        progress("label_predictor", 0, 1)
        held_out = bench.held_out
        require_finite(*model.state_dict().values(), bench.held_out_losses)
        label_predictor = _label_predictor(given, torch.sigmoid(logits), label_solver)
    with timings.stage("guard"):
        before = _metrics(start, given.label_predictor, given, edited=False)
        after = _metrics(held_out[:, _kept(given)], label_predictor, given, edited=True)
        gradient_after = objective_gradient_norm(bench.twin.now(), norm_rows, bench.weight_decay)
    relative_norm = step_norm / vectors.norm(origin)
    refusal = refusal_of(lambda: require_utility(before, after, tolerance))
    if method == "solve" and refusal is None:  # the closed form measures nothing
        refusal = refusal_of(lambda: require_gain(steps), lambda: require_near(relative_norm))
    report = {
        "step": {
            "norm": step_norm,
            "relative_norm": relative_norm,
            "damping": bench.damping,
            "iterations": sum(step.iterations for step in steps),
            "steps": [step.to_json() for step in steps],
            "curvature_rows": min(bench.curvature_rows(given.data), len(given.data.after)),
            "gradient_norm": {"before": gradient_before, "after": gradient_after},
            "batch_norm": given.factors.record.bn,
        },
        "calibration": {"before": before, "after": after},
        "timings": timings.seconds,
        "seeds": {"edit": settings.seed, "factors": given.factors.record.seed},
    }
    if given.data.dropped:
        factors = drop_outputs(factors, HEAD, given.data.dropped)
    return EditOutcome(edited, label_predictor, factors, report, refusal)


def held_out_metrics(
    model: ConceptPredictor, label_predictor: LabelPredictor, given: EditInput, *, edited: bool
) -> dict[str, float]:
    """F1 scores on the calibration split, over the concepts that both versions have.

    Args:
        edited: whether the model has the edited version's columns, or the base version's.
    """
    return _metrics(Twin(model).logits(given.calibration.images), label_predictor, given, edited=edited)


def _metrics(logits: Tensor, label_predictor: LabelPredictor, given: EditInput, *, edited: bool) -> dict[str, float]:
    probabilities = torch.sigmoid(logits)
    predicted = label_predictor.logits(probabilities).argmax(dim=1)
    both = [j for j in _kept(given) if j not in set(given.data.new)]  # new ones are the last in either order
    columns = list(range(len(both))) if edited else both
    concepts = concept_metrics(
        probabilities[:, columns].cpu().numpy(),
        given.calibration.concepts[:, both].cpu().numpy(),
        [given.concepts[j] for j in both],
    )
    labels = label_metrics(predicted.cpu().numpy(), given.calibration.classes.cpu().numpy(), len(given.classes))
    return {"concept_f1": concepts["concept_f1"], **labels}


def _prepared(given: EditInput) -> tuple[ConceptPredictor, Factors]:
    """A model to move, with rows for new concepts, and factors that fit it."""
    if not given.data.new:
        return copy.deepcopy(given.model), given.factors
    model = grown(given.model, given.data.new, given.data.after, given.calibration)
    return model, grown_factors(given.factors, given.data.new)


def _moved(bench: Bench, data: EditedData, timings: Timings) -> list[Step]:
    """Every movement of the whole net that the edit asks for.

    They work on disjoint rows of one edited data set, so their order is a choice: what must be learned comes first,
    and forgetting last, because learning drifts back towards membership.
    """
    steps: list[Step] = []
    for name, movement in (("extend", extend), ("learn", learn), ("withdraw", withdraw), ("forget", forget)):
        with timings.stage(name):
            steps += movement(bench, data)
    return steps


def _kept(given: EditInput) -> list[int]:
    return [j for j in range(len(given.concepts)) if j not in set(given.data.dropped)]


def _closed_form_step(bench: Bench, data: EditedData) -> Step:
    """The paper's one-shot step ``θ̂ + (F + dI)⁻¹ u`` with EK-FAC for ``F``, full length, unmeasured."""
    bench.progress("solving", 0, 1)
    u = edit_gradient(bench.model, data, bench.sample(data.untouched))
    if data.dropped:  # theorem 4.3: the kept objective's own gradient
        u = vectors.scale(-1.0, after_gradient(bench.model, data, bench.sample(data.untouched), bench.weight_decay))
    edited = data.after.take(torch.cat([data.fixed, data.added])).joined(data.masked(data.before.take(data.removed)))
    before = bench.loss(edited)
    line = Line(bench.model, inverse_factors(u, bench.factors, bench.damping, data.dropped))
    line.at(1.0)
    return Step(
        "closed_form", 1.0, vectors.norm(line.direction), 0, 0.0, "closed_form", None, before, bench.loss(edited)
    )


def _label_predictor(given: EditInput, after: Tensor, solver: str) -> LabelPredictor:
    """Args:
    after: concept probabilities of the edited train rows, ``[n, k']``.
    """
    data, weight_decay = given.data, given.training["label_weight_decay"]
    require_finite(after)
    if solver == "converged" or data.new:  # the paper has no theorem for new concepts
        start = grown_label_predictor(given.label_predictor, data.new).without_concepts(list(data.dropped))
        return fit_label_predictor(
            after, data.after.classes, len(given.classes), weight_decay=weight_decay, start=start
        )
    return closed_form_edit(
        given.label_predictor,
        before=(torch.sigmoid(predict_logits(given.model, data.before.images)), data.before.classes),
        intermediate=torch.sigmoid(predict_logits(given.model, data.after.images))[:, _kept(given)],
        after=(after, data.after.classes),
        weight_decay=weight_decay,
        dropped=data.dropped,
    )
