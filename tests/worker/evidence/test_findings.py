"""Findings: what makes each, what keeps it away, and that they are rare where there is nothing to find."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from worker.evidence.auc import FloatArray, Scores
from worker.evidence.audit import Attack
from worker.evidence.findings import findings
from worker.evidence.membership import Output


def scores(seed: int, shift: float, m: int = 120, n: int = 150) -> Scores:
    random = np.random.default_rng(seed)
    return Scores(random.normal(size=m) + shift, random.normal(size=n))


def attack(
    *,
    before: float = 1.0,
    after: float = 0.0,
    name: str = "loss",
    output: Output = "concepts",
    seed: int = 0,
    **size: int,
) -> Attack:
    """Areas of about ``Φ(shift/√2)``."""
    runs = {"before": [scores(seed, before, **size)], "after": [scores(seed + 1_000, after, **size)]}
    return Attack(name, output, runs)


def codes(*some: Attack, f1: tuple[float, float] | None = (0.9, 0.9)) -> list[str]:
    found = findings(some, f1)
    for one in found:
        assert one.keys() == {"code", "sentence", "numbers"}
        assert one["sentence"].endswith(".")
    json.dumps(found, allow_nan=False)
    return [one["code"] for one in found]


def test_an_edit_after_which_nothing_can_be_told_has_no_finding() -> None:
    assert codes(attack(seed=1), attack(seed=2, output="label")) == []


@pytest.mark.parametrize(("shift", "code"), [(1.0, "still_remembered"), (-1.0, "over_forgotten")])
@pytest.mark.parametrize("name", ["loss", "rmia"])
def test_areas_off_one_half_are_found(name: str, shift: float, code: str) -> None:
    (found,) = findings([attack(after=shift, name=name, output="label")], None)
    assert found["code"] == code
    numbers = found["numbers"]
    assert (numbers["attack"], numbers["output"], numbers["members"], numbers["non_members"]) == (
        name,
        "label",
        120,
        150,
    )
    assert numbers["interval"][0] > 0.5 or numbers["interval"][1] < 0.5
    assert f"{numbers['auc_after']:.3f}" in found["sentence"]
    assert ("RMIA attack on the label" if name == "rmia" else "loss attack on the label") in found["sentence"]


def test_the_loss_attack_on_rmia_s_rows_is_for_comparison_only() -> None:
    assert codes(attack(after=2.0, name="loss_on_rmia_rows")) == []


def test_findings_on_equal_rows_are_rare() -> None:
    """Four readings, none of them off: a finding in at most one of twenty edits, within three binomial deviations.
    Readings of one edit share no rows here, which is when most is found by chance."""
    edits, alarms = 400, 0
    for edit in range(edits):
        some = [attack(seed=4 * edit + i, name=name) for i, name in enumerate(("loss", "rmia", "loss", "rmia"))]
        alarms += bool(codes(*some))
    assert alarms / edits <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / edits)


@pytest.mark.parametrize(("m", "n"), [(49, 150), (150, 49), (1, 2)])
def test_few_rows_get_an_interval_and_no_verdict(m: int, n: int) -> None:
    found = findings([attack(before=0, after=5.0, m=m, n=n)], None)
    (few,) = [one for one in found if one["code"] == "few_rows"]
    assert not {"still_remembered", "over_forgotten"} & {one["code"] for one in found}
    assert (few["numbers"]["members"], few["numbers"]["non_members"]) == (m, n)
    low, high = few["numbers"]["intervals"]["loss.concepts"]
    assert 0 <= low < high <= 1


@pytest.mark.parametrize(
    ("after", "words"),
    [(9.0, "0.5 is outside that of the loss attack on the concepts."), (0.0, "0.5 is in all of them.")],
)
def test_few_rows_are_told_whether_one_half_is_ruled_out(after: float, words: str) -> None:
    (few,) = findings([attack(before=0, after=after, m=6)], None)
    assert words in few["sentence"]


def test_few_removed_rows_are_told_what_tells_more() -> None:
    def sentence(*some: Attack) -> str:
        (few,) = [one for one in findings(some, None) if one["code"] == "few_rows"]
        return str(few["sentence"])

    few, by_rmia = attack(before=0, m=6), attack(before=0, m=6, name="rmia")
    retrained = {"retrained": [scores(9, 0.0, m=6)]}
    compared, both = (Attack(one.name, one.output, {**one.runs, **retrained}) for one in (few, by_rmia))
    assert 'evidence "full" with reference models or a retraining' in sentence(few)
    assert 'evidence "full" with reference models: ' in sentence(compared)
    assert sentence(few, by_rmia).endswith("compare with a retraining.")
    assert "For so few rows" not in sentence(compared, both)
    assert "For so few rows" not in sentence(attack(before=0, m=60, n=40)), "here the test rows are few"


def test_an_attack_with_enough_rows_is_judged_beside_one_with_few() -> None:
    """RMIA has half of the test rows."""
    some = attack(after=1.0), attack(after=1.0, name="rmia", n=40)
    assert codes(*some) == ["few_rows", "still_remembered"]


class TestMemorised:
    def test_by_the_attack_before_the_edit(self) -> None:
        assert codes(attack(before=3.0)) == ["memorised"]
        assert codes(attack(before=3.0, output="label")) == ["memorised"]
        assert codes(attack(before=1.0)) == []

    def test_by_rmia_it_is_not_told(self) -> None:
        """A strong attack on a model that generalises is no sign of it."""
        assert codes(attack(before=3.0, name="rmia")) == []

    @pytest.mark.parametrize(("m", "expected"), [(4, ["few_rows"]), (5, ["memorised", "few_rows"])])
    def test_a_few_rows_can_tell_it_but_not_by_luck(self, m: int, expected: list[str]) -> None:
        assert codes(attack(before=9.0, m=m)) == expected

    def test_by_the_gap_of_f1(self) -> None:
        (found,) = findings([attack()], (0.97, 0.85))
        assert found["code"] == "memorised"
        assert (found["numbers"]["concept_f1_removed"], found["numbers"]["concept_f1_test"]) == (0.97, 0.85)
        assert "0.12 higher" in found["sentence"]
        assert codes(attack(), f1=(0.95, 0.86)) == []
        assert codes(attack(m=20), f1=(1.0, 0.5)) == ["few_rows"]


class TestAgainstRetrained:
    """The rows' nature is not the edit's doing."""

    def compared(self, after: float, retrained: float, *, repeats: int = 1, noise: float = 0.2) -> Attack:
        random = np.random.default_rng(5)
        nature, others = random.normal(size=120), random.normal(size=150)

        def run(shift: float) -> Scores:
            def jitter(n: int) -> FloatArray:
                return random.normal(0, noise, n)

            return Scores(nature + shift + jitter(120), others + jitter(150))

        runs = {"before": [run(1.0)], "after": [run(after)], "retrained": [run(retrained) for _ in range(repeats)]}
        return Attack("loss", "concepts", runs)

    def test_rows_that_are_harder_by_nature_are_not_over_forgotten(self) -> None:
        some = self.compared(-0.8, -0.8)
        assert codes(some) == []
        assert codes(Attack("loss", "concepts", {w: r for w, r in some.runs.items() if w != "retrained"})) == [
            "over_forgotten"
        ]

    @pytest.mark.parametrize(
        ("after", "retrained", "code"), [(0.0, -0.8, "still_remembered"), (-0.8, 0.0, "over_forgotten")]
    )
    def test_what_a_retraining_does_not_do_is_found(self, after: float, retrained: float, code: str) -> None:
        (found,) = findings([self.compared(after, retrained)], None)
        assert found["code"] == code
        numbers: dict[str, Any] = found["numbers"]
        assert numbers["difference"] == pytest.approx(numbers["auc_after"] - numbers["auc_retrained"])
        assert (numbers["retrainings"], numbers["seed_deviation"]) == (1, None)

    def test_shared_rows_make_small_differences_visible(self) -> None:
        """A difference of 0.08, where the areas' own intervals are 0.14 wide and overlap."""
        assert codes(self.compared(0.3, 0.0)) == ["still_remembered"]

    def test_retrainings_that_differ_among_themselves_make_it_invisible(self) -> None:
        some = self.compared(0.3, 0.0)
        wild = [self.compared(0.0, shift).runs["retrained"][0] for shift in (-0.9, 0.9, 0.0)]
        assert codes(Attack("loss", "concepts", {**some.runs, "retrained": wild})) == []
        calm = [self.compared(0.0, 0.0).runs["retrained"][0] for _ in range(3)]
        assert codes(Attack("loss", "concepts", {**some.runs, "retrained": calm})) == ["still_remembered"]


def test_without_rows_there_is_nothing_to_find() -> None:
    assert codes(Attack("loss", "concepts")) == []
    assert codes() == []
