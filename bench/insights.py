"""How good are insights? Planted wrong labels found, and concepts ranked by the paper's estimate and by real drops.

On the demo's digits (one concept turned around in 5 % of the training rows) the jobs run as in the service. On
generated data of CUB's shape a tenth of all labels is turned around, held-out ones too, and learned by heart to the
last epoch; there the mathematics runs alone.

    python bench/insights.py --seeds 0 1 2 --json insights.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from closures import Road
from fidelity import PRESETS, Preset
from generated import generate
from rivals import Recipe, factors_of
from torch import Tensor

from worker.cbm.concept_predictor import HEAD
from worker.cbm.training import predict_logits
from worker.curvature.solve import Solution
from worker.data.tensors import LabelledImages
from worker.editing.step import Curvature
from worker.insight.importance import LabelledConcepts, agreement, drop_effects
from worker.insight.labels import flip_effects, label_influences, mean_loss_gradient, slopes
from worker.insight.suspects import label_losses, leverages, precision_at, self_influences, suspicion

Row = dict[str, Any]

TOP = 200
FLIPPED = 0.1
LEARNED_BY_HEART = 40  # epochs


def digits(seed: int) -> Row:
    """The demo's data through the jobs themselves."""
    with tempfile.TemporaryDirectory() as folder:
        road = Road(seed, Path(folder))
        kinds = ["concept_importance", "influential_labels", "suspected_labels"]
        options = {"kinds": kinds, "top": TOP, "sample_id": None}
        report = road.run("insight", base=road.newest, options=options).report
    wrong = {(road.ids[label.key], label.concept) for label in road.planted}
    m, found = len(wrong), report["insights"]
    suspected, harmful = found["suspected_labels"]["labels"], found["influential_labels"]["harmful"]
    by_loss = [label for label in suspected if label["loss_rank"] <= m]
    if len(by_loss) < m:
        raise RuntimeError("a label of high loss is not among the suspected ones: list more")

    def precision(labels: list[Row]) -> float:
        return sum((label["sample_id"], label["concept"]) in wrong for label in labels) / len(labels)

    return {
        "data": "digits",
        "seed": seed,
        "wrong": m,
        "labels": found["suspected_labels"]["labels_known"],
        "suspicion": precision(suspected[:m]),
        "self_influence": precision(sorted(suspected, key=lambda label: -float(label["self_influence"]))[:m]),
        "loss": precision(by_loss),
        "harmful": precision(harmful[:m]),
        "harmful_20": precision(harmful[:20]),
        **found["concept_importance"]["agreement"],
        "seconds": report["timings"],
    }


def generated(seed: int, preset: Preset) -> Row:
    """Generated data whose wrong labels the net has learned by heart."""
    data = generate(preset.shape, seed)
    generator = torch.Generator().manual_seed(seed)

    def noisy(rows: LabelledImages) -> tuple[LabelledImages, Tensor]:
        wrong = torch.rand(rows.concepts.shape, generator=generator) < FLIPPED
        return replace(rows, concepts=torch.where(wrong, 1 - rows.concepts, rows.concepts)), wrong

    train, wrong = noisy(data.train)
    calibration, _ = noisy(data.calibration)
    recipe = Recipe(preset.architecture, {**preset.training, "epochs": LEARNED_BY_HEART}, preset.shape.classes)
    # Its own training rows decide which epoch is kept: the last, as no held-out loss stops it.
    (model, label_predictor), _ = recipe.trained(train, train, seed, lambda done, total: None)
    factors = factors_of(model, train)
    with torch.no_grad():
        features = predict_logits(model.backbone, train.images)
        logits = model.head(features)
    damping = max(float(preset.training["weight_decay"]), 0.01 * factors.mean_eigenvalue)
    scores = self_influences(logits, train.concepts, leverages(factors.layers[HEAD], features, damping))
    influence_damping = 10 * factors.mean_eigenvalue
    solution: Solution = Curvature(model, train, torch.ones(len(train)), factors, influence_damping).solve(
        mean_loss_gradient(model, calibration), iterations=16
    )
    _, along = slopes(model, train.images, solution.vector)
    influences = label_influences(logits, along, train.concepts)

    def labelled(rows: LabelledImages) -> LabelledConcepts:
        return LabelledConcepts(torch.sigmoid(predict_logits(model, rows.images)), rows.classes)

    weight_decay = float(preset.training["label_weight_decay"])
    effects = drop_effects(label_predictor, labelled(train), labelled(calibration), weight_decay=weight_decay)
    m = int(wrong.sum())
    return {
        "data": "generated",
        "seed": seed,
        "wrong": m,
        "labels": wrong.numel(),
        "suspicion": precision_at(suspicion(scores, -flip_effects(along, train.concepts), train.concepts), wrong, m),
        "self_influence": precision_at(scores, wrong, m),
        "loss": precision_at(label_losses(logits, train.concepts), wrong, m),
        "harmful": precision_at(influences, wrong, m),
        "harmful_20": precision_at(influences, wrong, 20),
        **asdict(agreement(effects.estimated[:, 0], effects.refitted[:, 0])),
    }


def line(row: Row) -> str:
    correlation = "–" if row["rank_correlation"] is None else f"{row['rank_correlation']:.2f}"
    return (
        f"{row['data']:10} {row['seed']!s:>7}  {row['wrong']:5} of {row['labels']:6} wrong"
        f"  precision: suspicion {row['suspicion']:.3f}  self-influence {row['self_influence']:.3f}"
        f"  loss {row['loss']:.3f}"
        f"  harmful {row['harmful']:.3f}, first 20 {row['harmful_20']:.2f}"
        f"  concepts: top {row['top']} and bottom {row['bottom']} of {row['size']}, rank correlation {correlation}"
    )


def means(rows: list[Row]) -> Row:
    """Over the seeds of one data set."""
    names = ("suspicion", "self_influence", "loss", "harmful", "harmful_20", "top", "bottom", "rank_correlation")
    numbers = {name: round(statistics.mean(row[name] for row in rows), 3) for name in names}
    return {**rows[0], "seed": "mean", **numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    measures: list[Callable[[int], Row]] = [digits, lambda seed: generated(seed, PRESETS["small"])]
    rows: list[Row] = []
    for measure in measures:
        some = []
        for seed in arguments.seeds:
            some.append(measure(seed))
            print(line(some[-1]), flush=True)
        print(line(means(some)), flush=True)
        rows += some
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
