"""RMIA: the paper's formula taken literally, and a model that has learned its rows by heart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worker.cbm.label_predictor import fit_label_predictor
from worker.evidence.auc import FloatArray, Scores, auc
from worker.evidence.design import inclusion, population_split, reference_seeds
from worker.evidence.rmia import log_prior, rmia_scores


def literal_prior(probabilities: FloatArray, trained_on: np.ndarray, a: float) -> list[float]:
    """``Pr(x)`` row by row, with plain probabilities."""
    result = []
    for x in range(probabilities.shape[1]):
        inside = [p for p, there in zip(probabilities[:, x], trained_on[:, x], strict=True) if there]
        outside = [p for p, there in zip(probabilities[:, x], trained_on[:, x], strict=True) if not there]
        out = sum(outside) / len(outside)
        result.append(0.5 * (sum(inside) / len(inside) + out) if inside else 0.5 * ((1 + a) * out + (1 - a)))
    return result


def literal_scores(
    x: FloatArray, prior_x: list[float], z: FloatArray, prior_z: list[float], gamma: float
) -> list[float]:
    """Pair by pair."""
    result = []
    for px, general_x in zip(x, prior_x, strict=True):
        won = sum((px / general_x) / (pz / general_z) >= gamma for pz, general_z in zip(z, prior_z, strict=True))
        result.append(won / len(z))
    return result


@pytest.mark.parametrize("gamma", [1.0, 2.0])
@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("mode", ["online", "offline", "mixed"])
def test_it_is_the_paper_s_formula(mode: str, a: float, gamma: float) -> None:
    random = np.random.default_rng(0)
    x, z = random.uniform(0.01, 1, 23), random.uniform(0.01, 1, 41)
    references_x, references_z = random.uniform(0.01, 1, (4, 23)), random.uniform(0.01, 1, (4, 41))
    in_x, in_z = inclusion(4, 23, 0), inclusion(4, 41, 0)
    if mode == "offline":
        in_x[:], in_z[:] = False, False
    if mode == "mixed":
        in_z[:] = False
    found = rmia_scores(
        np.log(x) - log_prior(np.log(references_x), in_x, a),
        np.log(z) - log_prior(np.log(references_z), in_z, a),
        gamma,
    )
    expected = literal_scores(x, literal_prior(references_x, in_x, a), z, literal_prior(references_z, in_z, a), gamma)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_without_references_rows_are_ordered_as_by_the_loss_attack() -> None:
    random = np.random.default_rng(1)
    rows, population = -random.gamma(1, 1, 50), -random.gamma(1, 1, 200)
    prior = log_prior(np.zeros((0, 50)), np.zeros((0, 50), dtype=bool))
    found = rmia_scores(rows - prior, population)
    assert (np.diff(found[np.argsort(rows)]) >= 0).all()
    assert len(np.unique(found)) > 30


def test_a_row_as_likely_as_one_of_the_population_beats_it() -> None:
    """At least γ, not more than γ."""
    assert rmia_scores(np.array([-1.0, -2.0, -4.0]), np.array([-1.0, -2.0, -3.0])).tolist() == [1.0, 2 / 3, 0.0]


def test_unlikely_rows_neither_overflow_nor_vanish() -> None:
    """A likelihood of exp(−2000) is 0 in float64."""
    prior = log_prior(np.array([[-2000.0, -1.0], [-2001.0, -1.0]]), np.array([[True, False], [False, True]]))
    assert prior[0] == pytest.approx(-2000 + np.log((1 + np.exp(-1)) / 2))
    assert np.isfinite(prior).all()


def test_a_row_that_every_reference_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="every reference"):
        log_prior(np.zeros((2, 1)), np.ones((2, 1), dtype=bool))
    with pytest.raises(ValueError, match="population"):
        rmia_scores(np.zeros(3), np.zeros(0))


def planted(seed: int, references: int) -> tuple[float, float]:
    """Areas of RMIA and of the loss attack on a softmax regression that knows 60 rows out of 120 candidates by heart.

    Rows differ in how hard they are by far more than in whether they were trained on, which is what references know.
    """
    random = np.random.default_rng(seed)
    rows, width, members = 320, 30, 60
    features = random.normal(size=(rows, width))
    signal = features[:, :3] @ random.normal(size=(3, 3)) * 2
    labels = (signal + random.gumbel(size=(rows, 3)) * random.choice([0.2, 4.0], size=(rows, 1))).argmax(axis=1)
    candidates, population, common = np.arange(120), np.arange(120, 240), np.arange(240, 320)

    def log_likelihoods(trained: FloatArray) -> FloatArray:
        fitted = fit_label_predictor(
            torch.tensor(features[trained]), torch.tensor(labels[trained]), 3, weight_decay=3e-3, tolerance=1e-5
        )
        logits = torch.log_softmax(fitted.logits(torch.tensor(features)), dim=1).numpy()
        return np.asarray(logits[np.arange(rows), labels], dtype=np.float64)

    target = log_likelihoods(np.concatenate([common, candidates[:members]]))
    inside = inclusion(references, 240, seed)
    models = np.stack([log_likelihoods(np.concatenate([common, np.flatnonzero(row)])) for row in inside])
    ratio = target[:240] - log_prior(models[:, :240], inside)
    found = rmia_scores(ratio[candidates], ratio[population])
    loss = target[candidates]
    return auc(Scores(found[:members], found[members:])), auc(Scores(loss[:members], loss[members:]))


@pytest.mark.parametrize(("references", "advantage"), [(1, 0.03), (8, 0.06)])
def test_references_tell_members_that_the_loss_does_not(references: int, advantage: float) -> None:
    """Means of five draws."""
    rmia, loss = np.mean([planted(seed, references) for seed in range(5)], axis=0)
    assert rmia > loss + advantage
    assert rmia > 0.65


class TestDesign:
    @pytest.mark.parametrize("rows", [1, 2, 7, 60])
    def test_population_and_non_members_share_the_test_rows(self, rows: int) -> None:
        population, others = population_split(rows, seed=3)
        assert sorted([*population, *others]) == list(range(rows))
        assert len(others) - len(population) in (0, 1)
        again = population_split(rows, seed=3)
        assert (again[0] == population).all()

    def test_another_seed_splits_otherwise(self) -> None:
        assert population_split(60, 0)[0].tolist() != population_split(60, 1)[0].tolist()

    @pytest.mark.parametrize("references", [2, 3, 4, 7, 8])
    def test_a_candidate_is_in_about_half_of_the_references(self, references: int) -> None:
        inside = inclusion(references, 31, seed=0).sum(axis=0)
        assert set(inside.tolist()) <= {references // 2, (references + 1) // 2}
        assert inside.min() >= 1
        assert inside.max() < references

    def test_one_reference_knows_no_candidate(self) -> None:
        assert not inclusion(1, 31, seed=0).any()
        assert inclusion(0, 31, seed=0).shape == (0, 31)

    def test_reference_seeds_differ_and_repeat(self) -> None:
        seeds = reference_seeds(8, 0)
        assert len(set(seeds)) == 8
        assert seeds[:3] == reference_seeds(3, 0)
        assert 0 not in seeds
