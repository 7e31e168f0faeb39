"""How fast is it? Factor fits against curvlinops and kronfluence, the stages of an edit in epochs, and what grows.

Needs ``make bench-setup``. Every fit runs in a process of its own, so that its memory can be told; the libraries take
turns, and what is printed are medians over the rounds. With the defaults that takes about twenty minutes on one core,
half of it kronfluence's. Edits are of a narrow net with more rows, so that an epoch is long against a solve, whose cost
does not grow with the rows; the ratio is what to read.

    OMP_NUM_THREADS=1 python bench/speed.py --json speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from factor_fits import FITS, Work, measured, peak_gib
from generated import TEXTURES, Generated, Shape, generate

from worker.cbm.label_predictor import fit_label_predictor
from worker.cbm.training import predict_logits, train_concept_predictor
from worker.curvature import Batch, fit_factors
from worker.data.tensors import LabelledImages
from worker.editing.bench import Settings
from worker.editing.edited_data import EditedData
from worker.editing.engine import EditInput, edit

CLASSES = 20
TRAINING = {
    "epochs": 4,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "weight_decay": 1e-4,
    "patience": 4,
    "augment": False,
    "label_weight_decay": 1e-3,
}
GROWTH: dict[str, tuple[int, ...]] = {"rows": (64, 128, 256, 512), "concepts": (28, 112, 448), "width": (16, 32, 64)}


@dataclass(frozen=True)
class Edits:
    """Seconds of an epoch of training, of a factor fit and of each stage of an edit, by kind of edit."""

    epoch_seconds: float
    fit_seconds: float
    stage_seconds: dict[str, dict[str, float]]
    peak_gib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=128, help="of the factor fits")
    parser.add_argument("--edit-rows", type=int, default=2000, help="training rows of the edited model")
    parser.add_argument("--edit-width", type=int, default=16, help="channels of its first layer")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--libraries", nargs="+", choices=FITS, default=list(FITS))
    parser.add_argument("--no-growth", action="store_true", help="leave out how fits grow with rows, concepts, width")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(json.loads(options.child))))
        return
    work = Work(rows=options.rows, image_size=options.image_size, device=options.device)
    result: dict[str, Any] = {"device": device_name(options.device), "threads": torch.get_num_threads()}
    result |= compared(work, options.libraries, options.rounds)
    result |= edited(replace(work, rows=options.edit_rows, width=options.edit_width), options.rounds)
    if not options.no_growth:
        result["growth"] = growth(work)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def compared(work: Work, libraries: list[str], rounds: int) -> dict[str, Any]:
    """The same fit by every library, in turns."""
    print(f"factor fit, ResNet-18, {work.rows} rows at {work.image_size} px, {work.concepts} concepts")
    runs: dict[str, list[dict[str, float]]] = {library: [] for library in libraries}
    for _ in range(rounds):
        for library in libraries:
            runs[library].append(in_child("fit", library=library, work=asdict(work)))
    medians = {
        library: {key: statistics.median(run[key] for run in of) for key in of[0]} for library, of in runs.items()
    }
    for library, found in medians.items():
        ratio = found["seconds"] / medians[libraries[0]]["seconds"]
        print(
            f"  {library:12} {found['seconds']:7.2f} s  {ratio:5.2f} ×  {found['peak_gib']:5.2f} GiB"
            f"  trace {found['trace']:.4g}",
            flush=True,
        )
    return {
        "factor_fit": {library: found["seconds"] for library, found in medians.items()},
        "factor_fit_runs": {library: [run["seconds"] for run in of] for library, of in runs.items()},
        "factor_fit_peak_gib": {library: found["peak_gib"] for library, found in medians.items()},
        "trace": {library: found["trace"] for library, found in medians.items()},
    }


def edited(work: Work, rounds: int) -> dict[str, Any]:
    """The stages of edits, in seconds and in epochs of training."""
    runs = [in_child("edit", work=asdict(work)) for _ in range(rounds)]
    epoch = statistics.median(run["epoch_seconds"] for run in runs)
    print(f"edits of a ResNet-18 of width {work.width} on {work.rows} rows, in epochs of {epoch:.2f} s:")
    stages = {
        kind: {stage: statistics.median(run["stage_seconds"][kind][stage] for run in runs) for stage in of}
        for kind, of in runs[0]["stage_seconds"].items()
    }
    for kind, of in stages.items():
        print(f"  {kind:10} " + "  ".join(f"{stage} {seconds / epoch:.2f}" for stage, seconds in of.items() if seconds))
    fit = statistics.median(run["fit_seconds"] for run in runs)
    peak = statistics.median(run["peak_gib"] for run in runs)
    print(f"  factors of the same rows {fit / epoch:.2f}, not in the above; {peak:.2f} GiB at the peak", flush=True)
    return {
        "epoch_seconds": epoch,
        "edit_stage_seconds": stages,
        "edit_factor_fit_seconds": fit,
        "peak_gib": peak,
    }


def growth(work: Work) -> dict[str, dict[str, float]]:
    """Our fit with more rows, concepts or channels, the others as they are; one run each."""
    found: dict[str, dict[str, float]] = {}
    for name, sizes in GROWTH.items():
        found[name] = {}
        for size in sizes:
            changed = {**asdict(work), name: size}
            found[name][str(size)] = in_child("fit", library="ours", work=changed)["seconds"]
        print(f"{name:9}" + "  ".join(f"{size}: {seconds:.2f} s" for size, seconds in found[name].items()), flush=True)
    return found


def in_child(task: str, **arguments: Any) -> dict[str, Any]:
    """Do one task in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps({"task": task, **arguments})]
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(given: dict[str, Any]) -> dict[str, Any]:
    work = Work(**given["work"])
    if given["task"] == "fit":
        return asdict(measured(given["library"], work))
    return asdict(edits(work))


def edits(work: Work) -> Edits:
    """Train, fit factors, and make each kind of edit."""
    shape = Shape(CLASSES, work.concepts // TEXTURES, work.image_size, work.rows, work.rows // 4, 1)
    data = generate(shape, 0, work.device)
    ends = [time.perf_counter()]
    model, _ = train_concept_predictor(
        work.architecture(),
        TRAINING,
        data.train,
        data.calibration,
        seed=0,
        progress=lambda done, total: ends.append(time.perf_counter()),
    )
    epochs = [after - before for before, after in pairwise(ends)]
    start = time.perf_counter()
    factors = fit_factors(model, lambda: batches_of(data.train), seed=0)
    fit_seconds = time.perf_counter() - start
    probabilities = torch.sigmoid(predict_logits(model, data.train.images))
    label_predictor = fit_label_predictor(
        probabilities, data.train.classes, CLASSES, weight_decay=float(TRAINING["label_weight_decay"])
    )
    stages: dict[str, dict[str, float]] = {}
    for kind, change in edited_sets(data).items():
        given = EditInput(
            model=model,
            label_predictor=label_predictor,
            factors=factors,
            data=change,
            calibration=change.masked(data.calibration),
            concepts=[str(j) for j in range(work.concepts)],
            classes=[str(c) for c in range(CLASSES)],
            training=TRAINING,
        )
        stages[kind] = edit_seconds(given)
    return Edits(statistics.median(epochs[1:]), fit_seconds, stages, peak_gib(work.device))


def edit_seconds(given: EditInput) -> dict[str, float]:
    start = time.perf_counter()
    outcome = edit(
        given,
        method="solve",
        label_solver="converged",
        tolerance={"concept_f1": 1.0, "label_f1": 1.0},
        settings=Settings(),
        progress=lambda stage, done, total: None,
    )
    whole = time.perf_counter() - start
    found: dict[str, float] = dict(outcome.report["timings"])
    return {**found, "everything_else": whole - sum(found.values()), "whole": whole}


def edited_sets(data: Generated) -> dict[str, EditedData]:
    """3% removed; one label of 10% of the rows corrected; a concept dropped."""
    train = data.train
    wrong = train.concepts.clone()
    flipped = torch.arange(len(train) // 10)
    wrong[flipped, 0] = 1 - wrong[flipped, 0]
    dropped = train.concepts.clone()
    dropped[:, 0] = -1
    return {
        "remove": EditedData(train, train.take(torch.arange(len(train) * 3 // 100, len(train)))),
        "fix": EditedData(train, replace(train, concepts=wrong)),
        "drop": EditedData(train, replace(train, concepts=dropped), (0,)),
    }


def batches_of(rows: LabelledImages) -> Iterator[Batch]:
    for start in range(0, len(rows), 256):
        part = slice(start, start + 256)
        yield rows.images[part], None, torch.arange(len(rows))[part]


def device_name(device: str) -> str:
    return "cpu" if device == "cpu" else torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
