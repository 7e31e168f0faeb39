"""Label F1 and time against how much is edited, in how many rounds, and out of how much noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from papers.methods import FACTOR_FITTING, Outcome, Workshop
from papers.protocols import LABEL_NOISE_LEVELS, NOISE, concepts_at
from papers.states import CONCEPT, CONCEPT_LABEL, NOISY_LEVELS, Draws, Edit, State

Record = dict[str, Any]
SEED = 0


def ratios(shop: Workshop) -> list[Record]:
    """One edit per ratio and method, each of the version before any: labels, concepts and rows."""
    draws, points = Draws(shop.data, SEED), []
    for level in NOISY_LEVELS:
        counts: set[int] = set()
        for ratio in shop.options.ratios:
            concepts = concepts_at(ratio, len(shop.data.concepts))
            if level == CONCEPT and concepts in counts:
                continue
            counts.add(concepts)
            edit = draws.edit(level, ratio, concepts)
            count = concepts if level == CONCEPT else max(1, round(ratio * len(shop.data.train)))
            for method in shop.options.methods:
                outcome = shop.by(method, edit, SEED)
                points.append(_record(shop, outcome, edit.after, level=level, method=method, ratio=ratio, count=count))
    return points


def periodic(shop: Workshop) -> list[Record]:
    """Noise that is cleaned away in rounds, each edit of the version that the last one made; round 0 is all noise."""
    draws, points = Draws(shop.data, SEED), []
    for level in NOISY_LEVELS:
        states = draws.noisy(level, NOISE, shop.options.rounds)
        base = Outcome(*shop.trained(states[0], SEED))
        for method in _edits_of(shop):
            outcomes = [base, *shop.chain(method, level, states, SEED)]
            for turn, (state, outcome) in enumerate(zip(states, outcomes, strict=True)):
                point = {"level": level, "method": method, "round": turn, "rounds": len(states) - 1}
                points.append(_record(shop, outcome, state, **point))
    return points


def noise_removal(shop: Workshop) -> list[Record]:
    """All noise removed by one edit, at each level; labels out of several amounts of noise."""
    draws, points = Draws(shop.data, SEED), []
    for level in NOISY_LEVELS:
        for noise in LABEL_NOISE_LEVELS if level == CONCEPT_LABEL else (NOISE,):
            noisy, clean = draws.noisy(level, noise, 1)
            before = Outcome(*shop.trained(noisy, SEED))
            points.append(_record(shop, before, noisy, level=level, method="before", noise=noise))
            for method in _edits_of(shop):
                outcome = shop.by(method, Edit(level, noisy, clean), SEED)
                points.append(_record(shop, outcome, clean, level=level, method=method, noise=noise))
    return points


def _edits_of(shop: Workshop) -> Sequence[str]:
    """As in the paper, which leaves CBM-IF out of repeated edits."""
    return [method for method in shop.options.methods if method != "cbm_if"]


def _record(shop: Workshop, outcome: Outcome, state: State, **what: Any) -> Record:
    scores = asdict(shop.scores(outcome.model, state)) if outcome.model else {}
    empty = {"label_f1": None, "label_accuracy": None, "concept_f1": None}
    fitting = FACTOR_FITTING.get(what["method"], "none")
    return {**what, **empty, **scores, "seconds": outcome.seconds, "factor_fitting": fitting}


def lines(points: Sequence[Record], along: str) -> list[str]:
    """The curves as text, one line per level and method."""
    found = []
    for level, method in dict.fromkeys((point["level"], point["method"]) for point in points):
        same = [point for point in points if (point["level"], point["method"]) == (level, method)]
        found.append(f"{level:14} {method:12} factor fitting {same[0]['factor_fitting']}")
        for name, digits in (("label_f1", 4), ("label_accuracy", 4), ("seconds", 2)):
            cells = [
                f"{point[along]:g}: " + ("none" if point[name] is None else f"{point[name]:.{digits}f}")
                for point in same
            ]
            found.append(f"    {name:14} " + "  ".join(cells))
    return found
