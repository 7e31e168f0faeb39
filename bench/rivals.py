"""Ways to a model of an edited data set, each timed: the engine's, the paper's, fine-tuning, and training anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import torch

from worker.cbm.concept_predictor import ConceptPredictor, build_concept_predictor, with_head_rows
from worker.cbm.label_predictor import LabelPredictor, fit_label_predictor
from worker.cbm.training import concept_losses, predict_logits, train_concept_predictor
from worker.curvature import Batch, Factors, fit_factors
from worker.data.tensors import LabelledImages
from worker.editing.bench import Settings
from worker.editing.edited_data import EditedData
from worker.editing.engine import EditInput, edit
from worker.editing.growth import grown
from worker.editing.guard import EditRefused

Settled = tuple[ConceptPredictor, LabelPredictor]
"""Both predictors of a model."""

UNLIMITED = {"concept_f1": 1.0, "label_f1": 1.0}
"""The table shows what an edit costs; the guard would only leave a gap."""

FINE_TUNING_RATE = 0.25
"""Peak learning rate of fine-tuning as a share of the training's; it falls to zero along a cosine."""


@dataclass(frozen=True)
class Recipe:
    """How models are trained; see :func:`worker.cbm.training.train_concept_predictor`."""

    architecture: Mapping[str, Any]
    training: Mapping[str, Any]
    classes: int

    def trained(
        self, train: LabelledImages, calibration: LabelledImages, seed: int, progress: Callable[[int, int], None]
    ) -> tuple[Settled, float]:
        """A model and the seconds it took."""
        start = now(train)
        model, _ = train_concept_predictor(
            self.architecture, self.training, train, calibration, seed=seed, progress=progress
        )
        label_predictor = self.label_predictor(model, train)
        return (model, label_predictor), now(train) - start

    def label_predictor(
        self, model: ConceptPredictor, rows: LabelledImages, start: LabelPredictor | None = None
    ) -> LabelPredictor:
        """Converged on the rows."""
        probabilities = torch.sigmoid(predict_logits(model, rows.images))
        weight_decay = self.training["label_weight_decay"]
        return fit_label_predictor(probabilities, rows.classes, self.classes, weight_decay=weight_decay, start=start)


@dataclass(frozen=True)
class Request:
    """An edit in the columns of its frame: the base version's, then the new ones.

    Attributes:
        calibration: held-out rows of the edited data set, dropped concepts unknown.
    """

    data: EditedData
    calibration: LabelledImages

    @property
    def kept(self) -> list[int]:
        """Columns of the edited model."""
        return [j for j in range(self.data.after.concepts.shape[1]) if j not in set(self.data.dropped)]

    @property
    def before(self) -> LabelledImages:
        """The training rows of the base version, in its columns."""
        rows = self.data.before
        return replace(rows, concepts=rows.concepts[:, : rows.concepts.shape[1] - len(self.data.new)])

    @property
    def goal(self) -> LabelledImages:
        """The training rows of the edited data set, in the edited model's columns."""
        return replace(self.data.after, concepts=self.data.after.concepts[:, self.kept])


def now(rows: LabelledImages) -> float:
    """Seconds, once the device has done what it was asked to."""
    if rows.images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def factors_of(model: ConceptPredictor, rows: LabelledImages) -> Factors:
    """EK-FAC factors of the true Fisher at the model."""

    def batches() -> list[Batch]:
        parts = torch.split(torch.arange(len(rows), device=rows.images.device), 256)
        return [(rows.images[part], rows.concepts[part] >= 0, part) for part in parts]

    return fit_factors(model, batches, seed=0)


def edited(
    recipe: Recipe,
    base: Settled,
    factors: Factors,
    request: Request,
    *,
    method: Literal["solve", "closed_form"] = "solve",
    settings: Settings | None = None,
    refit: bool = True,
) -> tuple[Settled, float, dict[str, Any]] | EditRefused:
    """The engine's model, its seconds and its report; where the engine refuses, the refusal, which says why.

    Args:
        refit: whether the closed form fits its factors anew, within its seconds, as the service has it; the other
            methods use ``factors`` as they are in either case.
    """
    start = now(request.calibration)
    if refit and method == "closed_form":
        factors = factors_of(base[0], request.before)
    given = EditInput(
        model=base[0],
        label_predictor=base[1],
        factors=factors,
        data=request.data,
        calibration=request.calibration,
        concepts=[str(j) for j in range(request.data.after.concepts.shape[1])],
        classes=[str(c) for c in range(recipe.classes)],
        training=recipe.training,
    )
    try:
        outcome = edit(
            given,
            method=method,
            label_solver="closed_form" if method == "closed_form" else "converged",
            tolerance=UNLIMITED,
            settings=settings or Settings(),
            progress=lambda stage, done, total: None,
        )
    except EditRefused as refused:
        return refused
    return (outcome.model, outcome.label_predictor), now(request.calibration) - start, outcome.report


def fine_tuned(recipe: Recipe, base: Settled, request: Request, epochs: int, seed: int = 0) -> tuple[Settled, float]:
    """Further epochs of training on the edited data set, and its seconds."""
    rows = request.goal
    start = now(rows)
    model = base[0]
    if request.data.new:
        model = grown(model, request.data.new, request.data.after, request.calibration)
    model = with_head_rows(model, request.kept)
    model.train()
    batch_size = min(recipe.training["batch_size"], len(rows))
    steps = epochs * (len(rows) // batch_size)
    rate = FINE_TUNING_RATE * recipe.training["learning_rate"]
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=recipe.training["weight_decay"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(rows), generator=generator).to(rows.images.device)
        for b in range(len(rows) // batch_size):
            chosen = order[b * batch_size : (b + 1) * batch_size]
            loss = concept_losses(model(rows.images[chosen]), rows.concepts[chosen]).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    model.eval()
    return (model, recipe.label_predictor(model, rows)), now(rows) - start


def epoch_seconds(recipe: Recipe, rows: LabelledImages, repeats: int = 3) -> float:
    """One epoch of training steps over the rows, at the fastest of the precisions and layouts that train well.

    Medians of ``repeats``, after an epoch to warm up.
    """
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        for precision in (torch.float32, torch.bfloat16):
            model = build_concept_predictor(recipe.architecture, rows.concepts.shape[1]).to(rows.images.device)
            model = model.to(memory_format=layout)
            moved = replace(rows, images=rows.images.to(memory_format=layout))
            times = [_epoch(recipe, model, moved, precision) for _ in range(repeats + 1)]
            found.append(median(times[1:]))
    return min(found)


def _epoch(recipe: Recipe, model: ConceptPredictor, rows: LabelledImages, precision: torch.dtype) -> float:
    start = now(rows)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.training["learning_rate"])
    batch_size = min(recipe.training["batch_size"], len(rows))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(rows.images.device)
    for b in range(len(rows) // batch_size):
        chosen = order[b * batch_size : (b + 1) * batch_size]
        with torch.autocast(rows.images.device.type, precision, enabled=precision != torch.float32):
            logits = model(rows.images[chosen])
        loss = concept_losses(logits.float(), rows.concepts[chosen]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return now(rows) - start
