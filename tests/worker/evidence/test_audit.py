"""Which rows an attack is made of, and that RMIA's parts are put together as its formula has them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from worker.evidence.audit import Losses, References, attacks, design, readings, rmia_attack_on
from worker.evidence.design import inclusion, population_split
from worker.evidence.membership import OUTPUTS, Output, RowLosses

REMOVED, TEST, CONCEPTS = 20, 31, 6


def rows(seed: int, n: int, known: np.ndarray) -> RowLosses:
    random = np.random.default_rng(seed)
    return RowLosses(random.gamma(1, 1, n) * known, known, random.gamma(1, 1, n))


def model(seed: int) -> Losses:
    """Rows 0 and 7 of either side have no concept labels, whatever the model."""
    sides = []
    for n in (REMOVED, TEST):
        known = np.random.default_rng(n).integers(1, CONCEPTS + 1, n)
        known[[0, 7]] = 0
        sides.append(rows(seed + n, n, known))
    return Losses(*sides)


def references(count: int) -> References:
    population, others = population_split(TEST, seed=0)
    inside = inclusion(count, REMOVED + TEST, seed=0)
    return References(
        population, others, [model(100 + r) for r in range(count)], inside[:, :REMOVED], inside[:, REMOVED:]
    )


def likelihood(losses: RowLosses, row: int, output: Output) -> float:
    if output == "label":
        return float(np.exp(-losses.label[row]))
    return float(np.exp(-losses.concepts[row] / losses.known[row]))


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_rmia_is_put_together_as_the_formula_has_it(count: int, output: Output) -> None:
    """Row by row, with plain probabilities."""
    target, given = model(1), references(count)

    def ratio(side: str, row: int) -> float:
        here = likelihood(getattr(target, side), row, output)
        mask = given.removed_in if side == "removed" else given.test_in
        values = [likelihood(getattr(one, side), row, output) for one in given.losses]
        if not values:
            return here
        out = np.mean([v for v, there in zip(values, mask[:, row], strict=True) if not there])
        inside = [v for v, there in zip(values, mask[:, row], strict=True) if there]
        return float(here / ((np.mean(inside) + out) / 2 if inside else (1.3 * out + 0.7) / 2))

    def usable(side: str, some: list[int]) -> list[int]:
        return [row for row in some if output == "label" or getattr(target, side).known[row] > 0]

    population = [ratio("test", row) for row in usable("test", given.population.tolist())]
    found = rmia_attack_on(target, output, given)
    for side, some, values in (
        ("removed", list(range(REMOVED)), found.members),
        ("test", given.non_members.tolist(), found.non_members),
    ):
        expected = [np.mean([ratio(side, row) / z >= 1 for z in population]) for row in usable(side, some)]
        assert values.tolist() == pytest.approx(expected, abs=1e-12)


def test_attacks_of_either_level() -> None:
    models = {"before": [model(1)], "after": [model(2)], "retrained": [model(3), model(4)]}
    standard = readings(attacks(models))
    assert standard.keys() == {"loss"}
    full = readings(attacks(models, references(2)))
    assert full.keys() == {"loss", "rmia", "loss_on_rmia_rows"}
    assert full["loss"] == standard["loss"]
    sizes = {
        (name, output): (one["after"]["members"], one["after"]["non_members"])
        for name, outputs in full.items()
        for output, one in outputs.items()
    }
    half = int((model(1).test.known[references(2).non_members] > 0).sum())
    assert sizes == {
        ("loss", "concepts"): (18, 29),
        ("loss", "label"): (20, 31),
        ("rmia", "concepts"): (18, half),
        ("rmia", "label"): (20, 16),
        ("loss_on_rmia_rows", "concepts"): (18, half),
        ("loss_on_rmia_rows", "label"): (20, 16),
    }
    assert full["rmia"]["label"]["retrained"]["models"] == 2
    json.dumps(full, allow_nan=False)


def test_an_output_that_no_row_knows_is_not_attacked() -> None:
    blank = RowLosses(np.zeros(REMOVED), np.zeros(REMOVED, dtype=np.int64), np.ones(REMOVED))
    losses = Losses(blank, model(1).test)
    found = readings(attacks({"before": [losses], "after": [losses]}))
    assert found["loss"]["concepts"] is None
    assert found["loss"]["label"]["after"]["members"] == REMOVED


def test_a_single_test_row_has_no_population() -> None:
    one = Losses(model(1).removed, model(1).test.take(np.array([3])))
    given = References(*population_split(1, 0), [], np.zeros((0, REMOVED), bool), np.zeros((0, 1), bool))
    found = readings(attacks({"before": [one], "after": [one]}, given))
    assert found["rmia"] == {"concepts": None, "label": None}
    assert found["loss"]["label"]["after"]["non_members"] == 1


@pytest.mark.parametrize(
    ("count", "mode", "a"),
    [(0, "population_only", None), (1, "offline", 0.3), (2, "online", None), (8, "online", None)],
)
def test_the_report_says_what_the_references_were(count: int, mode: str, a: float | None) -> None:
    told = design(references(count), kept_rows=300)
    assert (told["mode"], told["offline_a"], told["reference_models"]) == (mode, a, count)
    assert (told["population"], told["non_members"]) == (15, 16)
    if count:
        assert told["trained_on"]["kept_rows"] == 300
        assert sum(told["trained_on"]["candidates"]) == (count * (REMOVED + TEST) // 2 if count > 1 else 0)
        assert "memory only" in told["storage"]
