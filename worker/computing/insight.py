"""Insights into a version, from the curvature that edits use. They make no version.

Rows are told by their ids: who reads the report looks the keys up, so that an erased row has none any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from worker.cbm.concept_predictor import HEAD
from worker.cbm.head_training import joint
from worker.cbm.linear_heads import HeadObjective, feature_matrix
from worker.cbm.training import predict_logits
from worker.computing.factors import fit_on
from worker.computing.frozen import is_frozen
from worker.computing.workbench import Workbench
from worker.curvature.factors import Factors
from worker.data.tensors import LabelledImages
from worker.editing.bench import chosen
from worker.editing.step import Curvature
from worker.insight.changes import Predictions, changes
from worker.insight.heads import head_leverages, head_slopes, target_gradients
from worker.insight.importance import LabelledConcepts, agreement, drop_effects
from worker.insight.labels import UNKNOWN, flip_effects, label_influences, mean_loss_gradient, slopes
from worker.insight.suspects import falling_ranks, label_losses, leverages, self_influences, suspicion
from worker.tasks import Json, Result, TaskFailure

CURVATURE_ROWS = 4096
"""At most. A label of a row that the curvature does not know seems to have several times its influence."""
ITERATIONS = 16
INFLUENCE_DAMPING = 10.0
"""In mean eigenvalues of the factors. With an edit's damping, up to a thousand times less, the solve has not converged
after 200 iterations, and what it says of single labels is mostly where it stopped. With this one 16 iterations tell the
order, and of planted wrong labels more are found among the harmful (docs/insights.md)."""
CONCEPTS_PER_CLASS = 10


def insight(bench: Workbench) -> Result:
    """Compute the kinds of insight that the task's options name, about its base version."""
    task, start = bench.task, time.perf_counter()
    if task.base is None:
        raise RuntimeError("an insight is into a version")
    bench.progress("loading", 0, 1)
    view = View(bench)
    found: Json = {}
    seconds: dict[str, float] = {}
    for kind in task.options["kinds"]:
        began = time.perf_counter()
        found[kind] = KINDS[kind](view)
        seconds[kind] = time.perf_counter() - began
    report = {
        "kind": "insight",
        "device": bench.device,
        "version": task.base.number,
        "insights": found,
        "timings": seconds,
        "seconds": time.perf_counter() - start,
    }
    return Result(concepts=task.base.concepts, publishes=False, report=report)


class View:
    """A version as insights look at it; what several of them need is had once."""

    def __init__(self, bench: Workbench) -> None:
        base = bench.task.base
        if base is None:
            raise RuntimeError("an insight is into a version")
        self.bench, self.base = bench, base
        self.snapshot = bench.snapshot(base.snapshot_digest)
        self.model, self.label_predictor = bench.model(base)
        self.top = int(bench.task.options["top"])

    @cached_property
    def train(self) -> LabelledImages:
        return self.bench.rows(self.snapshot, "train")

    @cached_property
    def calibration(self) -> LabelledImages:
        return self.bench.rows(self.snapshot, "calibration")

    @cached_property
    def factors(self) -> Factors:
        """The version's cached factors, or new ones where there are none."""
        if self.base.factors_digest:
            return self.bench.factors(self.base.factors_digest)
        return fit_on(self.bench, self.model, self.train, self.bench.task.seed)

    @cached_property
    def along_held_out(self) -> Along:
        """For the mean concept loss of the calibration split."""
        return along_descent(self, self.calibration)

    @property
    def weight_decay(self) -> float:
        return float(self.bench.task.training["weight_decay"])

    @cached_property
    def heads(self) -> HeadObjective | None:
        """What the heads minimise on the training rows, where the backbone is frozen: its Hessian needs no factors."""
        return self.objective_of(self.train) if is_frozen(self.bench.task.training) else None

    def objective_of(self, rows: LabelledImages) -> HeadObjective:
        """Of heads on rows that are features."""
        return HeadObjective(feature_matrix(rows), rows.concepts, self.weight_decay)

    @cached_property
    def damping(self) -> float:
        """As of edits: the weight decay, at least a hundredth of the factors' mean eigenvalue where there are some."""
        if self.heads is not None:
            return self.weight_decay
        return max(self.weight_decay, 0.01 * self.factors.mean_eigenvalue)

    @cached_property
    def leverages(self) -> Tensor:
        """Of the training rows' logits in the head, ``[n, k]``."""
        if self.heads is not None:
            report = partial(self.bench.progress, "leverages")
            return head_leverages(self.heads, joint(self.model), report)
        with torch.no_grad():
            features = predict_logits(self.model.backbone, self.train.images)
        return leverages(self.factors.layers[HEAD], features, self.damping)

    def labelled(self, rows: LabelledImages) -> LabelledConcepts:
        return LabelledConcepts(torch.sigmoid(predict_logits(self.model, rows.images)), rows.classes)

    def row(self, sample_id: int) -> LabelledImages:
        """The one row of that id, whatever its split."""
        position = int(self.snapshot.sample_ids.searchsorted(sample_id))
        split = ("train", "calibration", "test")[int(self.snapshot.splits[position])]
        rows = self.bench.rows(self.snapshot, split)
        return rows.take(rows.sample_ids == sample_id)


def concept_importance(view: View) -> Json:
    """What the label predictor loses without each concept, on the calibration split."""
    held_out = view.labelled(view.calibration)
    effects = drop_effects(
        view.label_predictor,
        view.labelled(view.train),
        held_out,
        weight_decay=float(view.bench.task.training["label_weight_decay"]),
        progress=lambda done, total: view.bench.progress("concepts", done, total),
    )
    refitted, estimated = effects.refitted.cpu(), effects.estimated.cpu()

    def listed(column: int, order: Tensor) -> list[Json]:
        return [
            {
                "concept": view.base.concepts[j],
                "refitted": float(refitted[j, column]),
                "estimated": float(estimated[j, column]),
            }
            for j in order.tolist()
        ]

    order = refitted[:, 0].argsort(descending=True, stable=True)
    counts = torch.bincount(view.calibration.classes.cpu(), minlength=len(view.base.classes)).tolist()
    of_classes = [
        {
            "class": name,
            "rows": counts[number],
            "concepts": listed(
                number + 1,
                refitted[:, number + 1].argsort(descending=True, stable=True)[: min(view.top, CONCEPTS_PER_CLASS)],
            ),
        }
        for number, name in enumerate(view.base.classes)
        if counts[number]
    ]
    return {
        "ranked_by": "refitted",
        "held_out_rows": len(view.calibration),
        "agreement": asdict(agreement(estimated[:, 0], refitted[:, 0])),
        "most": listed(0, order[: view.top]),
        "least": listed(0, order.flip(0)[: view.top]),
        "classes": of_classes,
    }


def influential_labels(view: View) -> Json:
    """The training labels that lower and raise the loss of the calibration split, or of the sample asked about."""
    sample_id = view.bench.task.options.get("sample_id")
    along = view.along_held_out if sample_id is None else along_descent(view, view.row(sample_id))
    influences = label_influences(along.logits, along.slopes, view.train.concepts)
    shown = {"influence": influences, "if_flipped": flip_effects(along.slopes, view.train.concepts)}
    return {
        "target": {"sample_id": sample_id, "rows": along.target_rows},
        "train_rows": len(view.train),
        "solve": along.solve,
        "helpful": _labels(view, along.logits, -influences, shown),
        "harmful": _labels(view, along.logits, influences, shown),
    }


def suspected_labels(view: View) -> Json:
    """The training labels most likely wrong, beside where their plain loss ranks them."""
    along, concepts = view.along_held_out, view.train.concepts
    effects = flip_effects(along.slopes, concepts)
    self_influence = self_influences(along.logits, concepts, view.leverages)
    losses = label_losses(along.logits, concepts)
    scores = suspicion(self_influence, -effects, concepts)
    shown = {
        "suspicion": scores,
        "self_influence": self_influence,
        "if_flipped": effects,
        "loss": losses,
        "loss_rank": falling_ranks(losses),
    }
    return {
        "layer": HEAD,
        "damping": view.damping,
        "solve": along.solve,
        "labels_known": int((concepts != UNKNOWN).sum()),
        "labels": _labels(view, along.logits, scores, shown),
    }


@dataclass(frozen=True)
class Along:
    """Training rows' logits, and their slopes along ``s = (F + dI)⁻¹ ∇target``, both ``[n, k]``."""

    logits: Tensor
    slopes: Tensor
    target_rows: int
    solve: Json


def along_descent(view: View, target: LabelledImages) -> Along:
    """One solve for the mean concept loss of the target rows, and one forward-mode pass over the training rows."""
    if view.heads is not None:
        return _along_heads(view, view.heads, target)
    everyone = torch.arange(len(view.train), device=view.train.images.device)
    rows = view.train.take(chosen(everyone, CURVATURE_ROWS, view.bench.task.seed))
    weights = torch.ones(len(rows), device=rows.images.device)
    factors = view.factors
    damping = max(view.weight_decay, INFLUENCE_DAMPING * factors.mean_eigenvalue)
    view.bench.progress("gradient", 0, 1)
    solution = Curvature(view.model, rows, weights, factors, damping).solve(
        mean_loss_gradient(view.model, target),
        iterations=ITERATIONS,
        progress=lambda done, total: view.bench.progress("solving", done, total),
    )
    logits, along = slopes(
        view.model,
        view.train.images,
        solution.vector,
        progress=lambda done, total: view.bench.progress("labels", done, total),
    )
    told: Json = {
        "iterations": solution.iterations,
        "relative_residual": solution.relative_residual,
        "stop": str(solution.stop),
        "damping": damping,
        "curvature_rows": len(rows),
    }
    return Along(logits, along, len(target), told)


def _along_heads(view: View, heads: HeadObjective, target: LabelledImages) -> Along:
    """The same where the backbone is frozen: exact, one factorisation per concept."""
    theta = joint(view.model)
    gradients = target_gradients(view.objective_of(target), theta)
    found = head_slopes(heads, theta, gradients, partial(view.bench.progress, "solving"))
    told: Json = {
        "iterations": 0,
        "relative_residual": found.relative_residual,
        "stop": "direct",
        "damping": view.weight_decay,
        "curvature_rows": len(view.train),
    }
    return Along(found.logits, found.slopes, len(target), told)


def changed_predictions(view: View) -> Json:
    """What the version predicts for test rows, held against another version."""
    task = view.bench.task
    if task.compared is None:
        raise RuntimeError("changes are between two versions")
    other = task.compared["base"]
    view.bench.progress("changes", 0, 2)
    rows = view.bench.rows(view.snapshot, "test")
    other_snapshot = view.bench.snapshot(other.snapshot_digest)
    both = torch.from_numpy(other_snapshot.sample_ids[other_snapshot.rows("test")]).to(rows.sample_ids)
    rows = rows.take(torch.isin(rows.sample_ids, both))
    names = [name for name in view.base.concepts if name in set(other.concepts)]
    if not len(rows) or not names:
        raise TaskFailure("nothing_to_compare", "the two versions have no test row, or no concept, in common")
    predictions = []
    for done, version in enumerate((other, view.base), 1):
        model, label_predictor = view.bench.model(version)
        probabilities = torch.sigmoid(predict_logits(model, rows.images))
        columns = [version.concepts.index(name) for name in names]
        predictions.append(Predictions(probabilities[:, columns], label_predictor.logits(probabilities).argmax(dim=1)))
        view.bench.progress("changes", done, 2)
    before, after = predictions
    found = changes(before, after)
    return {
        "compared_with": other.number,
        "rows": len(rows),
        "concepts": len(names),
        "relabelled": int(found.relabelled.sum()),
        "mean_abs_dp": float(found.mean.mean()),
        "max_abs_dp": float(found.largest.max()),
        "predictions": [
            {
                "sample_id": int(rows.sample_ids[i]),
                "concept": names[int(found.concept[i])],
                "before": float(before.probabilities[i, found.concept[i]]),
                "after": float(after.probabilities[i, found.concept[i]]),
                "mean_abs_dp": float(found.mean[i]),
                "class_before": other.classes[int(before.classes[i])],
                "class_after": view.base.classes[int(after.classes[i])],
            }
            for i in found.order()[: view.top].tolist()
        ],
    }


KINDS: Mapping[str, Callable[[View], Json]] = {
    "concept_importance": concept_importance,
    "influential_labels": influential_labels,
    "suspected_labels": suspected_labels,
    "changed_predictions": changed_predictions,
}


def _labels(view: View, logits: Tensor, scores: Tensor, shown: Mapping[str, Tensor]) -> list[Json]:
    """The known labels of highest positive score, with what is shown of each."""
    best = scores.flatten().topk(min(view.top, scores.numel()))
    k = scores.shape[1]
    return [
        {
            "sample_id": int(view.train.sample_ids[place // k]),
            "concept": view.base.concepts[place % k],
            "label": int(view.train.concepts[place // k, place % k]),
            "probability": float(torch.sigmoid(logits[place // k, place % k])),
            **{name: values[place // k, place % k].item() for name, values in shown.items()},
        }
        for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        if score > 0
    ]
