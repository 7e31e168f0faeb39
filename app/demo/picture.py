"""The demo's numbers as one picture: a row for each edit, a panel for each question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from app.demo.report import EditOutcome, ShownEdit

# Okabe and Ito's colours: they stay apart for colour-blind readers, and in gray by their marks.
BEFORE, EDITED, RETRAINED, INK, FAINT = "#9a9a9a", "#0072b2", "#d55e00", "#222222", "#e4e4e4"
SIZE = (13.0, 4.7)  # inches
TICKS_OF_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

Values = Sequence[float | None]


def draw(path: Path, edits: Sequence[ShownEdit], *, device: str | None) -> None:
    """Write the picture as PNG. Edits that were not measured keep an empty row."""
    figure = Figure(figsize=SIZE, dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 4, sharey=True, gridspec_kw={"width_ratios": (1.35, 1, 1, 0.9)})
    outcomes = [edit.outcome for edit in edits]
    _seconds(panels[0], outcomes)
    _scores(panels[1], "concept F1 on test data", outcomes, "concept_f1", least_span=0.04)
    _scores(panels[2], "label F1 on test data", outcomes, "label_f1", least_span=0.04)
    _scores(panels[3], "attack AUC, removed rows", outcomes, "auc", least_span=0.3)
    panels[3].axvline(0.5, color=BEFORE, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    panels[0].set_yticks(range(len(edits)), [_label(edit) for edit in edits])
    panels[0].set_ylim(len(edits) - 0.4, -0.6)  # the first edit on top
    figure.suptitle(
        "Editing a trained model, beside retraining it", x=0.012, y=0.975, ha="left", fontsize=14, weight="bold"
    )
    figure.text(0.012, 0.885, _subtitle(device), ha="left", fontsize=9.5, color="#555555")
    _legend(figure)
    figure.tight_layout(rect=(0, 0, 1, 0.9), w_pad=2.2)
    figure.savefig(path, metadata={"Software": None})


def _seconds(axes: Axes, outcomes: Sequence[EditOutcome]) -> None:
    edited, retrained = [o.seconds for o in outcomes], [o.retrain_seconds for o in outcomes]
    _frame(axes, "seconds (log scale)")
    _connect(axes, edited, retrained)
    _marks(axes, retrained, color=RETRAINED, marker="D", size=86, filled=False)
    _marks(axes, edited, color=EDITED, marker="o", size=64)
    for row, outcome in enumerate(outcomes):
        if outcome.speed_up and outcome.seconds and outcome.retrain_seconds:
            middle = (outcome.seconds * outcome.retrain_seconds) ** 0.5
            axes.annotate(
                _times(outcome.speed_up),
                (middle, row),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                color=INK,
            )
    axes.set_xscale("log")
    known = [value for value in (*edited, *retrained) if value]
    if known:
        axes.set_xlim(min(known) / 1.8, max(known) * 1.8)
    axes.xaxis.set_major_locator(FixedLocator(list(TICKS_OF_SECONDS)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _scores(axes: Axes, title: str, outcomes: Sequence[EditOutcome], score: str, *, least_span: float) -> None:
    """Args: ``least_span`` keeps small differences small: an axis covers at least that much."""
    before, edited, retrained = (
        [getattr(outcome, f"{score}_{when}") for outcome in outcomes] for when in ("before", "after", "retrained")
    )
    _frame(axes, title)
    _connect(axes, before, edited)
    _connect(axes, edited, retrained)
    _marks(axes, before, color=BEFORE, marker="o", size=120, filled=False)
    _marks(axes, retrained, color=RETRAINED, marker="D", size=86, filled=False)
    _marks(axes, edited, color=EDITED, marker="o", size=64)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    known = [value for value in (*before, *edited, *retrained) if value is not None]
    if known:
        middle, span = (min(known) + max(known)) / 2, max(1.25 * (max(known) - min(known)), least_span)
        high = min(middle + span / 2, 1 + 0.06 * span)  # a score of 1 is the end, with room for its mark
        axes.set_xlim(high - span, high)


def _frame(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=10)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.tick_params(axis="both", length=0, labelsize=9.5, colors=INK)


def _connect(axes: Axes, start: Values, end: Values) -> None:
    for row, (a, b) in enumerate(zip(start, end, strict=True)):
        if a is not None and b is not None:
            axes.plot([a, b], [row, row], color="#c9c9c9", linewidth=2.4, solid_capstyle="round", zorder=2)


def _marks(axes: Axes, values: Values, *, color: str, marker: str, size: float, filled: bool = True) -> None:
    known = [(value, row) for row, value in enumerate(values) if value is not None]
    axes.scatter(
        [value for value, _ in known],
        [row for _, row in known],
        s=size,
        marker=marker,
        facecolors=color if filled else "white",
        edgecolors="white" if filled else color,
        linewidths=1.0 if filled else 1.8,
        zorder=3,
    )


def _label(edit: ShownEdit) -> str:
    if edit.outcome.state != "succeeded":
        return f"{edit.title}\n{edit.outcome.state}"
    closure = edit.outcome.closure
    return edit.title if closure is None else f"{edit.title}\nclosure {closure:.2f}"


def _times(speed_up: float) -> str:
    if 0.95 < speed_up < 1.05:
        return "as fast"
    factor, word = (speed_up, "faster") if speed_up >= 1 else (1 / speed_up, "slower")
    return f"{factor:.0f}× {word}" if factor >= 10 else f"{factor:.1f}× {word}"


def _subtitle(device: str | None) -> str:
    return (
        "Each edit starts from the version before it. Closure 1: the edited rows are as they are after retraining. "
        f"AUC 0.5: the attack cannot tell removed from unseen rows.{f' Device: {device}.' if device else ''}"
    )


def _legend(figure: Figure) -> None:
    axes = figure.axes[0]
    marks = [
        axes.scatter([], [], s=100, facecolors="white", edgecolors=BEFORE, linewidths=1.8, label="before"),
        axes.scatter([], [], s=64, color=EDITED, label="edited"),
        axes.scatter(
            [], [], s=86, marker="D", facecolors="white", edgecolors=RETRAINED, linewidths=1.8, label="retrained"
        ),
    ]
    figure.legend(handles=marks, loc="upper right", ncols=3, frameon=False, fontsize=10, bbox_to_anchor=(0.995, 0.99))
