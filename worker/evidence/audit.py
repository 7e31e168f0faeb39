"""The audit of a removal: every attack on every output, on models before, after and retrained, read into numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from worker.evidence.auc import FloatArray, Scores, area
from worker.evidence.design import Mask, Rows
from worker.evidence.membership import OUTPUTS, Output, RowLosses, loss_attack
from worker.evidence.operating_points import RATES, OperatingPoint, operating_point
from worker.evidence.rmia import GAMMA, OFFLINE_A, log_prior, rmia_scores

Json = dict[str, Any]


@dataclass(frozen=True)
class Losses:
    """Losses under one model of the removed rows and of the test rows, the same rows for every model."""

    removed: RowLosses
    test: RowLosses


@dataclass(frozen=True)
class References:
    """What RMIA needs besides the models in question.

    Attributes:
        population, non_members: disjoint positions of test rows.
        losses: under each reference model; empty when there are none.
        removed_in, test_in: whether a reference was trained on a row, ``[K, m]`` and ``[K, t]``.
    """

    population: Rows
    non_members: Rows
    losses: Sequence[Losses]
    removed_in: Mask
    test_in: Mask


@dataclass(frozen=True)
class Attack:
    """Scores of one attack on one output, of one or several models at each time: ``before``, ``after``, ``retrained``.

    ``runs`` is empty when a side has no row with this output.
    """

    name: str
    output: Output
    runs: Mapping[str, Sequence[Scores]] = field(default_factory=dict)


def attacks(models: Mapping[str, Sequence[Losses]], references: References | None = None) -> list[Attack]:
    """The loss attack on both outputs over all test rows; with references RMIA, and the loss attack on its rows.

    The latter (``loss_on_rmia_rows``) is there to be compared with RMIA: same members, same non-members.
    """
    found = [_attack("loss", output, models, loss_attack_on) for output in OUTPUTS]
    if references is not None:
        same = {when: [_on(losses, references.non_members) for losses in some] for when, some in models.items()}
        for output in OUTPUTS:
            found.append(_attack("rmia", output, models, partial(rmia_attack_on, references=references)))
            found.append(_attack("loss_on_rmia_rows", output, same, loss_attack_on))
    return found


def loss_attack_on(losses: Losses, output: Output) -> Scores:
    """The loss attack's scores under one model."""
    return loss_attack(losses.removed, losses.test, output)


def rmia_attack_on(losses: Losses, output: Output, references: References) -> Scores:
    """RMIA's scores under one model, of the removed rows and of the non-members."""
    some = references.losses
    removed = _log_ratios(losses.removed, [one.removed for one in some], references.removed_in, output)
    test = _log_ratios(losses.test, [one.test for one in some], references.test_in, output)
    there = losses.test.there(output)
    population, others = (test[rows][there[rows]] for rows in (references.population, references.non_members))
    members = removed[losses.removed.there(output)]
    if not len(population):
        return Scores(members[:0], others[:0])
    return Scores(rmia_scores(members, population), rmia_scores(others, population))


def _log_ratios(rows: RowLosses, elsewhere: Sequence[RowLosses], trained_on: Mask, output: Output) -> FloatArray:
    """``log Pr(x|θ) − log Pr(x)``."""
    here = rows.log_likelihoods(output)
    if not elsewhere:
        return here
    return here - log_prior(np.stack([one.log_likelihoods(output) for one in elsewhere]), trained_on)


def readings(found: Sequence[Attack]) -> Json:
    """``{attack: {output: {when: reading}}}``; None for an output that is known of no row on one side."""
    result: Json = {}
    for attack in found:
        result.setdefault(attack.name, {})[attack.output] = (
            {when: reading(runs) for when, runs in attack.runs.items()} if attack.runs else None
        )
    return result


def reading(runs: Sequence[Scores]) -> Json:
    """Area, its interval and the operating points of one model, or of several retrained ones (means)."""
    found = area(runs)
    return {
        "auc": found.value,
        "interval": [found.low, found.high],
        "standard_error": found.standard_error,
        "method": found.method,
        "members": len(runs[0].members),
        "non_members": len(runs[0].non_members),
        "models": len(runs),
        "tpr": [_point(operating_point(runs, rate)) for rate in RATES],
    }


def design(references: References, kept_rows: int) -> Json:
    """What the reference models were and where the rows came from, for the report."""
    count = len(references.losses)
    return {
        "population": len(references.population),
        "non_members": len(references.non_members),
        "reference_models": count,
        "mode": "population_only" if not count else "offline" if count == 1 else "online",
        "offline_a": OFFLINE_A if count == 1 else None,
        "gamma": GAMMA,
        "softening": "concepts: geometric mean over a row's known concepts",
        "trained_on": None
        if not count
        else {"kept_rows": kept_rows, "candidates": [int(a.sum() + b.sum()) for a, b in _inclusions(references)]},
        "storage": None
        if not count
        else "held in memory only and discarded with this job, because reference models may have learned removed rows",
    }


def _inclusions(references: References) -> list[tuple[Mask, Mask]]:
    return list(zip(references.removed_in, references.test_in, strict=True))


def _attack(
    name: str, output: Output, models: Mapping[str, Sequence[Losses]], score: Callable[[Losses, Output], Scores]
) -> Attack:
    runs = {when: [score(losses, output) for losses in some] for when, some in models.items()}
    sides = [s for some in runs.values() for s in some]
    complete = bool(sides) and all(len(s.members) and len(s.non_members) for s in sides)
    return Attack(name, output, runs if complete else {})


def _on(losses: Losses, rows: Rows) -> Losses:
    return Losses(losses.removed, losses.test.take(rows))


def _point(point: OperatingPoint) -> Json:
    measured = point.false_positives
    return {
        "fpr": point.rate,
        "tpr": point.found,
        "interval": None if point.interval is None else list(point.interval),
        "fpr_measured": None if measured is None else measured[0],
        "fpr_interval": None if measured is None else list(measured[1]),
        "reason": point.reason,
    }
