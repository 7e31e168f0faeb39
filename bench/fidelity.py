"""Are edited models what retraining would have made, and what does that cost in epochs?

Trains on generated data of CUB's shape (:mod:`bench.generated`), makes every edit by every method, trains anew on each
edited data set, and prints one line per edit and method. The last lines say whether the engine's own rows are within
their bounds. Nothing that chooses anything (step lengths, early stopping, the guard) sees the test rows.

    python bench/fidelity.py --preset small --json fidelity.json

Times are those of a whole edit from a version in memory to a version in memory, factors cached; only ``closed_form``
refits its factors, and that time is in its seconds. Edits by other methods are timed twice and the second time counts,
so kernels are warm; an epoch is the fastest one measured, whatever precision and memory layout that takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import Case, Draw
from generated import Shape, generate
from rivals import Recipe, Request, Settled, edited, epoch_seconds, factors_of, fine_tuned
from table import Row, closure, line, medians, outside, too_easy
from torch import Tensor

from worker.cbm.metrics import concept_metrics, label_metrics
from worker.cbm.training import concept_losses, predict_logits
from worker.curvature import Factors
from worker.data.tensors import LabelledImages
from worker.editing.bench import Settings
from worker.editing.guard import EditRefused
from worker.evidence.membership import loss_attack_auc

BASE_SEED = 0
"""Of the base versions' trainings. Retrainings have the seeds from it on: the first is the base version's own training
on other data, so that a seed's luck is on both sides."""

METHODS = ("ours", "closed_form", "ekfac_step", "fine_tune_1", "fine_tune_3")


@dataclass(frozen=True)
class Preset:
    """Data and training of one size."""

    shape: Shape
    architecture: dict[str, Any]
    training: dict[str, Any]


def resnet(image_size: int, stem: str, **training: Any) -> Preset:
    """ResNet-18 on as many images as CUB has."""
    shape = Shape(200, 28, image_size, 5394, 600, 5794, hidden=0.08, other=0.03, noise=0.5, classes_apart=8)
    architecture = {"name": "resnet18", "stem": stem, "width": 64, "image_size": image_size}
    return Preset(shape, architecture, trained_by(epochs=30, batch_size=64, learning_rate=1e-3, **training))


def trained_by(**settings: Any) -> dict[str, Any]:
    """No early stop but the choice of the best epoch."""
    defaults = {"weight_decay": 1e-5, "label_weight_decay": 1e-3, "augment": False, "patience": settings["epochs"]}
    return {**defaults, **settings}


PRESETS = {
    "small": Preset(
        Shape(20, 6, 32, 1000, 300, 3000, hidden=0.08, other=0.03, noise=0.5),
        {"name": "small_conv", "width": 24, "image_size": 32, "channels": 3},
        trained_by(epochs=20, batch_size=32, learning_rate=4e-3),
    ),
    "cub64": resnet(64, "small"),
    "cub224": resnet(224, "standard"),
}


@dataclass(frozen=True)
class Measured:
    """What a model does on the rows that matter, over the columns that all models of the case have."""

    edited_loss: float | None
    auc: float | None
    concept_f1: float
    label_f1: float
    probabilities: Tensor


class Comparison:
    """Models of one case, on test rows and on edited rows."""

    def __init__(self, case: Case, data: LabelledImages, classes: int) -> None:
        whole = case.whole()
        kept = case.last.kept
        self.classes, self.test = classes, replace(data, concepts=data.concepts[:, kept])
        removed = whole.before.take(whole.removed)
        coming = whole.after.take(torch.cat([whole.fixed, whole.added]))
        self.removed, self.edited = (
            replace(rows, concepts=rows.concepts[:, kept]) for rows in (removed, removed.joined(coming))
        )

    def measured(self, model: Settled, columns: list[int] | None = None) -> Measured:
        """Args:
        columns: of the model, that the edited version has too; all if None.
        """
        predictor, label_predictor = model

        def logits(rows: LabelledImages) -> Tensor:
            found = predict_logits(predictor, rows.images)
            return found if columns is None else found[:, columns]

        whole = torch.sigmoid(predict_logits(predictor, self.test.images))
        predicted = label_predictor.logits(whole).argmax(dim=1).cpu().numpy()
        p = whole if columns is None else whole[:, columns]
        known = self.test.concepts[:, : p.shape[1]]
        names = [str(j) for j in range(p.shape[1])]
        return Measured(
            edited_loss=mean_loss(logits(self.edited), self.edited) if len(self.edited) else None,
            auc=self._attack(logits) if len(self.removed) else None,
            concept_f1=concept_metrics(p.cpu().numpy(), known.cpu().numpy(), names)["concept_f1"],
            label_f1=label_metrics(predicted, self.test.classes.cpu().numpy(), self.classes)["label_f1"],
            probabilities=p,
        )

    def _attack(self, logits: Callable[[LabelledImages], Tensor]) -> float:
        members, others = (
            concept_losses(logits(rows), rows.concepts).cpu().numpy() for rows in (self.removed, self.test)
        )
        return loss_attack_auc(members, others)


def mean_loss(logits: Tensor, rows: LabelledImages) -> float:
    return float(concept_losses(logits, rows.concepts[:, : logits.shape[1]]).mean())


def mean(values: list[Any]) -> Any:
    """Of numbers; None if any is."""
    return None if any(value is None for value in values) else float(np.mean(values))


class Bench:
    """One draw: data, base versions, retrained references."""

    def __init__(self, preset: Preset, seed: int, options: argparse.Namespace) -> None:
        self.recipe = Recipe(preset.architecture, preset.training, preset.shape.classes)
        self.options, self.device = options, options.device
        self.draw = Draw(generate(preset.shape, seed, self.device), seed)
        self.seed = seed
        self.cases = self.draw.five()
        self.cases.append(self.draw.removals(0.01, 10))
        if options.full:
            self.cases += [self.draw.fix(share, f"noise:{share:.0%}") for share in (0.05, 0.15, 0.3)]
            self.cases += [self.draw.remove(share, f"size:remove_{share:.0%}") for share in (0.01, 0.03, 0.1)]
            self.cases += [self.draw.fix(share, f"size:fix_{share:.0%}") for share in (0.01, 0.03)]
            self.cases += [self.draw.add_samples(share) for share in (0.01, 0.03)]
        if options.only:
            self.cases = [case for case in self.cases if case.name.startswith(tuple(options.only))]
        self.models: dict[tuple[str, int], tuple[Settled, float]] = {}

    def train(self) -> None:
        """Every base version and every reference that a case needs, each once."""
        wanted = [(case.base, BASE_SEED) for case in self.cases]
        wanted += [(case.goal, seed) for case in self.cases for seed in self.reference_seeds]
        jobs = [
            (self.recipe, self.draw.sets[name], self.draw.held_out[name], 1000 * self.seed + seed, name)
            for name, seed in dict.fromkeys(wanted)
        ]
        for key, result in zip(dict.fromkeys(wanted), mapped(trained, jobs, self.options.processes), strict=True):
            self.models[key] = result

    @property
    def reference_seeds(self) -> range:
        return range(BASE_SEED, BASE_SEED + self.options.references)

    @property
    def retrain_seconds(self) -> float:
        return statistics.median(seconds for _, seconds in self.models.values())

    def rows(self) -> Iterator[Row]:
        """As they are made; ``epochs`` is still in seconds."""
        for case in self.cases:
            yield from self._case(case)

    def _case(self, case: Case) -> Iterator[Row]:
        comparison = Comparison(case, self.draw.data.test, self.recipe.classes)
        base, _ = self.models[case.base, BASE_SEED]
        references = [self.models[case.goal, seed] for seed in self.reference_seeds]
        kept = case.last.kept
        before = comparison.measured(base, kept if len(kept) < len(case.base_columns) else None)
        retrained = [comparison.measured(model) for model, _ in references]
        goal = {
            "auc_before": before.auc,
            "auc_retrained": mean([one.auc for one in retrained]),
            "concept_f1_before": before.concept_f1,
            "concept_f1_retrained": mean([one.concept_f1 for one in retrained]),
            "label_f1_before": before.label_f1,
            "label_f1_retrained": mean([one.label_f1 for one in retrained]),
        }
        loss_retrained = mean([one.edited_loss for one in retrained])

        def row(method: str, model: Settled | None, seconds: float | None) -> Row:
            if model is None:
                return Row(case.name, method, **goal, seconds=seconds)
            after = comparison.measured(model)
            distances = [float((after.probabilities - one.probabilities).abs().mean()) for one in retrained]
            return Row(
                case.name,
                method,
                closure=closure(before.edited_loss, after.edited_loss, loss_retrained),
                auc_after=after.auc,
                concept_f1_after=after.concept_f1,
                label_f1_after=after.label_f1,
                mean_abs_dp=mean(distances),
                seconds=seconds,
                **goal,
            )

        factors = factors_of(base[0], self.draw.sets[case.base])
        for method in self.options.methods:
            if len(case.requests) > 1 and method not in ("ours", "fine_tune_1"):
                continue
            yield row(method, *self._by(method, base, factors, case))
        pairs = [
            float((one.probabilities - other.probabilities).abs().mean()) for one, other in combinations(retrained, 2)
        ]
        yield Row(
            case.name,
            "retrain",
            closure=None if loss_retrained is None else 1.0,
            auc_after=goal["auc_retrained"],
            concept_f1_after=goal["concept_f1_retrained"],
            label_f1_after=goal["label_f1_retrained"],
            mean_abs_dp=mean(pairs),
            seconds=statistics.median(seconds for _, seconds in references),
            **goal,
        )

    def _by(self, method: str, base: Settled, factors: Factors, case: Case) -> tuple[Settled | None, float | None]:
        """The model after all of the case's requests, and the seconds of all of them."""
        model, total = base, 0.0
        repeats = 2 if len(case.requests) == 1 and method != "closed_form" else 1  # it is far from any bound
        for request in case.requests:
            made = [self._one(method, model, factors, request) for _ in range(repeats)][-1]
            if made is None:
                return None, None
            model, seconds = made
            total += seconds
        return model, total

    def _one(self, method: str, base: Settled, factors: Factors, request: Request) -> tuple[Settled, float] | None:
        if method.startswith("fine_tune"):
            return fine_tuned(self.recipe, base, request, int(method[-1]), self.seed)
        kind = "closed_form" if method == "closed_form" else "solve"
        settings = Settings(seed=self.seed, **({"iterations": 0} if method == "ekfac_step" else {}))
        made = edited(self.recipe, base, factors, request, method=kind, settings=settings)  # type: ignore[arg-type]
        if isinstance(made, EditRefused):
            print(f"{method}: refused ({made.code}): {made.detail}", file=sys.stderr)
            return None
        model, seconds, report = made
        if self.options.stages and method == "ours":
            print({name: round(value, 3) for name, value in report["timings"].items()}, file=sys.stderr)
            for step in report["step"]["steps"]:
                print({k: (round(v, 4) if isinstance(v, float) else v) for k, v in step.items()}, file=sys.stderr)
        return model, seconds


def trained(
    recipe: Recipe, rows: LabelledImages, calibration: LabelledImages, seed: int, name: str
) -> tuple[Settled, float]:
    """One training; in a process of its own where there are several."""
    model, seconds = recipe.trained(rows, calibration, seed, lambda done, total: None)
    print(f"trained on {name!r} with seed {seed} in {seconds:.1f} s", file=sys.stderr, flush=True)
    return model, seconds


def mapped(function: Callable[..., Any], jobs: list[tuple[Any, ...]], processes: int) -> list[Any]:
    """The function's results in order, computed in so many processes of one thread each."""
    if processes == 1:
        return [function(*job) for job in jobs]
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        return [future.result() for future in [pool.submit(function, *job) for job in jobs]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--full", action="store_true", help="noise clean-up and edit sizes as well")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one draw of the data each; rows are medians")
    parser.add_argument("--references", type=int, default=2, help="retrainings per edited data set, at least 2")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--only", nargs="+", help="edits whose names begin so")
    parser.add_argument("--stages", action="store_true", help="where the engine's seconds went")
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--processes", type=int, default=1 if cuda else 2, help="that train at the same time")
    options = parser.parse_args()
    if options.references < 2:
        parser.error("two retrainings at least: their distance is the floor")
    return options


def main() -> int:
    options = arguments()
    if options.processes > 1:
        torch.set_num_threads(1)  # as in the processes that train, so that times compare
    preset = PRESETS[options.preset]
    rows: list[Row] = []
    epochs, retrainings = [], []
    for seed in options.seeds:
        bench = Bench(preset, seed, options)
        bench.train()
        retrainings.append(bench.retrain_seconds)
        epochs.append(epoch_seconds(bench.recipe, bench.draw.sets["all"]))
        for row in bench.rows():
            rows.append(replace(row, epochs=None if row.seconds is None else row.seconds / epochs[-1]))
            print(line(rows[-1]), file=sys.stderr, flush=True)
    table = medians(rows)
    floors = {row.edit: row.mean_abs_dp for row in table if row.method == "retrain" and row.mean_abs_dp is not None}
    for row in table:
        print(line(row, floors[row.edit]))
    result = {
        "preset": options.preset,
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
        "epoch_seconds": statistics.median(epochs),
        "retrain_seconds": statistics.median(retrainings),
        "floor": statistics.median(floors.values()),
        "rows": [asdict(row) for row in table],
    }
    print(
        f"epoch {result['epoch_seconds']:.2f} s  retraining {result['retrain_seconds']:.1f} s  "
        f"floor {result['floor']:.4f}  over {len(options.seeds)} draws"
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    for miss in outside(table, floors):
        print("outside its bounds:", miss)
    easy = too_easy(table)
    for reason in easy:
        print("the data is no test:", reason)
    return 1 if easy else 0


if __name__ == "__main__":
    sys.exit(main())
