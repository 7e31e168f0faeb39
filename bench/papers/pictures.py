"""Curves, marks, histograms and image sheets as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from papers.loading import PaperData

Record = dict[str, Any]

# Okabe and Ito's colours, which stay apart for colour-blind readers.
COLOURS = {
    "before": "#9a9a9a",
    "retrain": "#d55e00",
    "cbm_if": "#e69f00",
    "closed_form": "#009e73",
    "ours": "#0072b2",
    "removed": "#d55e00",
    "non_members": "#009e73",
}
MARKS = {"before": "x", "retrain": "D", "cbm_if": "^", "closed_form": "s", "ours": "o"}


def ratios(points: Sequence[Record], path: Path) -> None:
    """Label F1 above, seconds below, a column per level."""
    levels = list(dict.fromkeys(point["level"] for point in points))
    figure, grid = _grid(2, len(levels))
    for column, level in enumerate(levels):
        own = [point for point in points if point["level"] == level]
        along = "count" if level == "concept" else "ratio"
        _curves(grid[0][column], own, along, "label_f1", f"{level}: label F1")
        _curves(grid[1][column], own, along, "seconds", "seconds")
        grid[1][column].set_yscale("log")
        grid[1][column].set_xlabel("concepts dropped" if level == "concept" else "share of rows")
    _written(figure, path)


def periodic(points: Sequence[Record], path: Path) -> None:
    """Label F1 and accuracy by round, a column per level."""
    levels = list(dict.fromkeys(point["level"] for point in points))
    figure, grid = _grid(2, len(levels))
    for column, level in enumerate(levels):
        own = [point for point in points if point["level"] == level]
        _curves(grid[0][column], own, "round", "label_f1", f"{level}: label F1")
        _curves(grid[1][column], own, "round", "label_accuracy", "label accuracy")
        grid[1][column].set_xlabel("round")
    _written(figure, path)


def noise_removal(points: Sequence[Record], path: Path) -> None:
    """Label F1 and accuracy before and after, a group per level and noise."""
    groups = list(dict.fromkeys((point["level"], point["noise"]) for point in points))
    figure, grid = _grid(2, 1, width=9.0)
    for axes, (score, title) in zip(
        (grid[0][0], grid[1][0]), (("label_f1", "label F1"), ("label_accuracy", "label accuracy")), strict=True
    ):
        _marks(
            axes,
            points,
            [(f"{level}\n{noise:.0%}", {"level": level, "noise": noise}) for level, noise in groups],
            score,
        )
        axes.set_title(title, loc="left", fontsize=10)
    _written(figure, path)


def influence(result: Record, path: Path) -> None:
    """Label F1 without the most influential concepts on the left, without the least on the right."""
    figure, grid = _grid(1, 2)
    for axes, side in zip(grid[0], ("most", "least"), strict=True):
        own = [point for point in result["points"] if point["side"] == side]
        counts = list(dict.fromkeys(point["count"] for point in own))
        _marks(axes, own, [(str(count), {"count": count}) for count in counts], "label_f1")
        axes.axhline(result["before"]["label_f1"], color=COLOURS["before"], linewidth=0.8)
        axes.set_title(f"label F1 without the {side} influential concepts", loc="left", fontsize=10)
        axes.set_xlabel("concepts dropped")
    _written(figure, path)


def sheet(shown: Record, data: PaperData, path: Path) -> None:
    """Test images of a class, and its most influential concepts with labels and predictions beside them.

    A concept is in bold type where retraining has it among the first, too.
    """
    rows, lists = shown["test_rows"], ("closed_form", "retrain")
    figure = Figure(figsize=(13.0, max(3.4, 0.24 * len(shown["retrain"]) + 1.6)), dpi=120, facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        1, len(rows) + 2, gridspec_kw={"width_ratios": [1] * len(rows) + [1.7, 1.7]}, squeeze=False
    )
    for axes, row in zip(panels[0], rows, strict=False):
        pixels = data.test.images[row].cpu().permute(1, 2, 0).numpy()
        axes.imshow(np.clip((pixels + 1) / 2, 0, 1))
    for axes in panels[0]:
        axes.axis("off")
    for axes, method in zip(panels[0][len(rows) :], lists, strict=True):
        others = {concept["name"] for name in lists if name != method for concept in shown[name]}
        axes.set_title(f"most influential, {method}", loc="left", fontsize=9)
        for line, concept in enumerate(shown[method]):
            label = {1: "1", 0: "0"}.get(concept["labels"][0], "?")
            axes.text(
                0.0,
                0.97 - line / max(1, len(shown[method])),
                f"{concept['name']}: {label}, p = {concept['probabilities'][0]:.2f}",
                fontsize=7.5,
                va="top",
                weight="bold" if concept["name"] in others else "normal",
                parse_math=False,
            )
    figure.suptitle(f"{shown['class']} (label and probability of the first image)", x=0.01, ha="left", fontsize=11)
    figure.savefig(path, metadata={"Software": None})


def histograms(found: Sequence[Record], path: Path) -> None:
    """RMIA scores, a line per output and a panel per model, with their means."""
    outputs, methods = (list(dict.fromkeys(one[name] for one in found)) for name in ("output", "method"))
    figure, grid = _grid(len(outputs), len(methods), width=3.4 * len(methods))
    bins = np.linspace(0, 1, 21).tolist()  # the scores are shares of the population
    for one in found:
        axes = grid[outputs.index(one["output"])][methods.index(one["method"])]
        for kind, values in (("removed", one["removed"]), ("non_members", one["non_members"])):
            mean = float(np.mean(values))
            label = f"{kind.replace('_', '-')}, mean {mean:.3f}"
            axes.hist(values, bins=bins, alpha=0.55, color=COLOURS[kind], label=label)
            axes.axvline(mean, color=COLOURS[kind], linewidth=1.2)
        axes.set_title(f"{one['output']}: {one['method']}", loc="left", fontsize=10)
        axes.set_xlabel("RMIA score")
        axes.legend(frameon=False, fontsize=7)
    _written(figure, path)


def _grid(lines: int, columns: int, width: float | None = None) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    figure = Figure(figsize=(width or 4.3 * columns, 3.1 * lines), dpi=120, facecolor="white")
    FigureCanvasAgg(figure)
    panels: Sequence[Sequence[Axes]] = figure.subplots(lines, columns, squeeze=False).tolist()
    return figure, panels


def _curves(axes: Axes, points: Sequence[Record], along: str, score: str, title: str) -> None:
    for method in dict.fromkeys(point["method"] for point in points):
        own = [point for point in points if point["method"] == method and point[score] is not None]
        axes.plot(
            [point[along] for point in own],
            [point[score] for point in own],
            color=COLOURS[method],
            marker=MARKS[method],
            markersize=4,
            label=method,
        )
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.legend(frameon=False, fontsize=8)


def _marks(axes: Axes, points: Sequence[Record], groups: Sequence[tuple[str, Record]], score: str) -> None:
    """A mark per group and method. Marks, not bars: the axis starts where differences can be seen."""
    methods = list(dict.fromkeys(point["method"] for point in points))
    for place, method in enumerate(methods):
        found = [
            (at + 0.12 * (place - (len(methods) - 1) / 2), point[score])
            for at, (_, where) in enumerate(groups)
            for point in points
            if point["method"] == method and where.items() <= point.items() and point[score] is not None
        ]
        axes.plot(
            [x for x, _ in found],
            [y for _, y in found],
            linestyle="none",
            color=COLOURS[method],
            marker=MARKS[method],
            markersize=6,
            label=method,
        )
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups], fontsize=8)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.legend(frameon=False, fontsize=8)


def _written(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
