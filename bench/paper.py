"""The whole protocol of "Controllable Concept Bottleneck Models" on one of its data sets, as downloaded.

Reads the directory as ``modelmend datasets import --layout`` does (docs/datasets.md says which files), trains, makes
every edit by every method, and prints the paper's table, curves and rankings; each edit beside training anew.

    python bench/paper.py --dataset cub --data CUB_200_2011 --json cub.json --out cub-pictures

Methods: ``retrain``; ``cbm_if``, influence without EK-FAC; ``closed_form``, the paper's CCBM: one EK-FAC step;
``ours``, the project's engine. It is always said whether fitting factors is in a time. The JSON file is written after
each part, so that a run that ends early loses only the part it was in.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from papers import attack, curves, influence, tables
from papers.direct import Direct
from papers.loading import PaperData, gibibytes, load, plan_of
from papers.methods import METHODS, Options, Workshop
from papers.protocols import ARCHITECTURES, PROTOCOLS, RATIOS, ROUNDS, Protocol, architecture_of, training_of
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rivals import Recipe

from app.datasets.importers import ImportPlan, SourceProblem

PARTS: dict[str, Callable[[Workshop, Protocol], Any]] = {
    "table": lambda shop, protocol: tables.table(shop, protocol.dropped),
    "ratios": lambda shop, protocol: curves.ratios(shop),
    "periodic": lambda shop, protocol: curves.periodic(shop),
    "noise": lambda shop, protocol: curves.noise_removal(shop),
    "influence": lambda shop, protocol: influence.influence(shop),
    "membership": lambda shop, protocol: attack.membership(shop),
}

LINES: dict[str, Callable[[Any], list[str]]] = {
    "table": tables.lines,
    "ratios": lambda result: curves.lines(result, "ratio"),
    "periodic": lambda result: curves.lines(result, "round"),
    "noise": lambda result: curves.lines(result, "noise"),
    "influence": influence.lines,
    "membership": attack.lines,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 2 if the data set is not whole, with the importer's words on what is missing."""
    options = parsed(arguments)
    protocol = PROTOCOLS[options.dataset]
    image_size = options.image_size or protocol.image_size
    console = Console(stderr=True)
    try:
        plan = plan_of(protocol, options.data)
        data = loaded(plan, image_size, options, console)
    except SourceProblem as problem:
        print(problem, file=sys.stderr)
        return 2
    architecture = architecture_of(options.architecture, image_size)
    training = training_of(options.architecture, options.epochs or protocol.epochs, len(data.train))
    recipe = Recipe(architecture, training, len(data.classes))
    amount = Options(
        tuple(method for method in METHODS if method in options.methods),
        options.repeats,
        options.seeds,
        tuple(options.ratios),
        options.rounds,
        Direct(iterations=options.cg_iterations),
    )
    result: dict[str, Any] = {
        "dataset": options.dataset,
        "title": data.title,
        "rows": {"train": len(data.train), "calibration": len(data.calibration), "test": len(data.test)},
        "concepts": len(data.concepts),
        "classes": len(data.classes),
        "limit": options.limit,
        "architecture": architecture,
        "training": training,
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device,
        "parts": {},
    }
    columns = (TextColumn("training, epochs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    epochs = bars.add_task("")
    shop = Workshop(
        data,
        recipe,
        amount,
        say=lambda line: console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True),
        progress=lambda done, total: bars.update(epochs, completed=done, total=total),
    )
    for name, part in PARTS.items():
        if name not in options.parts:
            continue
        console.print(f"{name} …", style="bold")
        with bars:
            result["parts"][name] = part(shop, protocol)
        print(f"\n{name}: {data.title}, {len(data.train):,} training rows, {result['device']}")
        print("\n".join(LINES[name](result["parts"][name])), flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
        if options.out:
            drawn(name, result["parts"][name], data, options.out)
    return 0


def loaded(plan: ImportPlan, image_size: int, options: argparse.Namespace, console: Console) -> PaperData:
    """The images in memory, with a progress bar on a terminal."""
    counts = ", ".join(f"{count:,} {split}" for split, count in plan.counts.items())
    size = gibibytes(plan, image_size, options.limit)
    console.print(f"{plan.title}: {counts}; {len(plan.concepts)} concepts, {len(plan.classes)} classes", markup=False)
    for note in plan.notes:
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)
    console.print(f"images of {image_size} pixels take {size:.2f} GiB on {options.device}")
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        return load(
            plan,
            image_size,
            limit=options.limit,
            device=options.device,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def drawn(name: str, result: Any, data: PaperData, out: Path) -> None:
    """The pictures of a part; a table has none."""
    from papers import pictures  # noqa: PLC0415  # matplotlib is not needed without --out

    match name:
        case "ratios":
            pictures.ratios(result, out / "ratios.png")
        case "periodic":
            pictures.periodic(result, out / "periodic.png")
        case "noise":
            pictures.noise_removal(result, out / "noise.png")
        case "influence":
            pictures.influence(result, out / "influence.png")
            for number, shown in enumerate(result["classes"], 1):
                pictures.sheet(shown, data, out / f"concepts-{number}.png")
        case "membership":
            pictures.histograms(result, out / "membership.png")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=PROTOCOLS, required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the unpacked download")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for pictures; needs the extra demo")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--architecture", choices=ARCHITECTURES, default=ARCHITECTURES[0], help="default the paper's")
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="to a side; default by data set")
    parser.add_argument("--epochs", type=positive, help="of a training; default by data set")
    parser.add_argument("--limit", type=positive, metavar="ROWS", help="of each split at most, drawn with a fixed seed")
    parser.add_argument("--repeats", type=positive, default=10, help="of label edits, removals and additions")
    parser.add_argument("--seeds", type=positive, default=5, help="of concept edits")
    parser.add_argument("--ratios", type=float, nargs="+", default=list(RATIOS), help="shares edited, for the curves")
    parser.add_argument("--rounds", type=positive, default=ROUNDS, help="of periodic editing")
    parser.add_argument("--cg-iterations", type=positive, default=Direct.iterations, help="of cbm_if at most")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    options = parser.parse_args(arguments)
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.out:
        if importlib.util.find_spec("matplotlib") is None:
            parser.error("--out draws with matplotlib: pip install -e '.[demo]'")
        options.out.mkdir(parents=True, exist_ok=True)
    if not all(0 < ratio < 1 for ratio in options.ratios):
        parser.error("--ratios are shares between 0 and 1")
    return options


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
