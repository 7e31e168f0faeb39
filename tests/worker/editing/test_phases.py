"""Samples, directions and lengths of the phases, on tiny nets in double precision."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from tests.worker.editing.rows import CONCEPTS, edited, fitted_net, objective_gradient, random_rows, tiny_net
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses, predict_logits
from worker.curvature import vectors
from worker.curvature.factors import Factors, fit_factors
from worker.curvature.solve import Solution
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData
from worker.editing.phases import Bench, Level, Settings, curvature_sample, drop, forget, learn

TRAINING = {"weight_decay": 1e-3, "learning_rate": 1e-3, "batch_size": 16}
TRAIN, CALIBRATION = random_rows(60, unknown=0.0), random_rows(40, first_id=500, seed=2, unknown=0.0)


pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def trained() -> ConceptPredictor:
    """Fits its rows better than others."""
    return fitted_net(TRAIN, TRAINING["weight_decay"])


@dataclass(frozen=True)
class Recorder(Bench):
    """Remembers where a solve was asked for, and for what."""

    solved: list[tuple[ConceptPredictor, ParameterVector]] = field(default_factory=list)

    def solve(self, u: ParameterVector, data: EditedData, **how: Any) -> Solution:
        self.solved.append((copy.deepcopy(self.model), {name: value.clone() for name, value in u.items()}))
        return super().solve(u, data, **how)


def factors_of(model: ConceptPredictor) -> Factors:
    return fit_factors(model, lambda: [(TRAIN.images, None, torch.arange(len(TRAIN)))], seed=0)


def bench_of(model: ConceptPredictor, calibration: LabelledImages = CALIBRATION, **settings: Any) -> Recorder:
    """On a copy of the model."""
    return Recorder(
        copy.deepcopy(model),
        factors_of(model),
        calibration,
        TRAINING,
        Settings(**{"curvature_rows": 1000, **settings}),
        lambda stage, done, total: None,
    )


def flipped(rows: LabelledImages, positions: range) -> list[tuple[int, int, int]]:
    return [(i, j, 1 - int(rows.concepts[i, j])) for i in positions for j in (0, 2)]


def masked(rows: LabelledImages, dropped: tuple[int, ...]) -> LabelledImages:
    concepts = rows.concepts.clone()
    concepts[:, list(dropped)] = UNKNOWN
    return replace(rows, concepts=concepts)


def exactly(value: float) -> Level:
    return Level(value, value, value)


class TestCurvatureSample:
    def test_everything_is_included_where_there_is_room(self) -> None:
        data = edited(TRAIN, fixed=flipped(TRAIN, range(5)), removed=[30], added=random_rows(4, first_id=900))
        rows, weights = curvature_sample(data, 1000, seed=0)
        assert sorted(rows.sample_ids.tolist()) == sorted(data.after.sample_ids.tolist())
        assert torch.equal(weights, torch.ones(len(data.after)))

    @pytest.mark.parametrize(("touched", "size"), [(3, 20), (20, 20), (20, 7), (59, 20), (1, 2)])
    def test_each_stratum_weighs_its_share(self, touched: int, size: int) -> None:
        """So the weighted mean of any function is unbiased: within a stratum all rows weigh the same."""
        data = edited(TRAIN, fixed=[(i, 0, 1 - int(TRAIN.concepts[i, 0])) for i in range(touched)])
        rows, weights = curvature_sample(data, size, seed=0)
        assert len(rows) == len(weights) == len(set(rows.sample_ids.tolist())) <= size
        fixed = torch.isin(rows.sample_ids, TRAIN.sample_ids[:touched])
        assert int(fixed.sum()) == min(touched, size // 2)
        assert float(weights.mean()) == pytest.approx(1.0)
        assert float(weights[fixed].sum() / weights.sum()) == pytest.approx(touched / len(TRAIN))
        for stratum in (weights[fixed], weights[~fixed]):
            assert len(set(stratum.tolist())) == 1

    def test_one_stratum_alone_is_a_plain_sample(self) -> None:
        nothing = edited(TRAIN)
        everything = edited(TRAIN, fixed=[(i, 0, 1 - int(TRAIN.concepts[i, 0])) for i in range(60)])
        for data, size in ((nothing, 10), (everything, 5)):
            rows, weights = curvature_sample(data, 10, seed=0)
            assert len(rows) == size
            assert torch.equal(weights, torch.ones(size))

    def test_samples_follow_the_seed(self) -> None:
        data = edited(TRAIN)
        first, again, other = (curvature_sample(data, 10, seed=seed)[0].sample_ids.tolist() for seed in (1, 1, 2))
        assert first == again
        assert first != other


@pytest.mark.parametrize("dropped", [(), (1,)])
def test_each_direction_of_learning_is_for_the_gradient_at_where_the_model_is(
    trained: ConceptPredictor, dropped: tuple[int, ...]
) -> None:
    """``∇J_before(θ̂) − ∇J_after(θ)`` with L2, by dense objectives at every solve; both with the rows that are removed
    later, and without the concepts that were dropped already."""
    new = masked(random_rows(5, first_id=900, seed=4), dropped)
    data = edited(TRAIN, fixed=flipped(TRAIN, range(12)), removed=[40, 41], added=new, dropped=dropped)
    bench = bench_of(trained, masked(CALIBRATION, dropped), learning_rounds=3)
    steps = learn(bench, data)
    assert len(bench.solved) >= 2
    assert steps[0].loss_after < steps[0].loss_before
    weight_decay = TRAINING["weight_decay"]
    at_start = objective_gradient(trained, masked(TRAIN, dropped), weight_decay)
    taught = data.after.joined(masked(TRAIN.take(torch.tensor([40, 41])), dropped))
    for model, u in bench.solved:
        expected = vectors.axpy(-1.0, objective_gradient(model, taught, weight_decay), at_start)
        for name, value in expected.items():
            torch.testing.assert_close(u[name], value, rtol=0, atol=1e-11)


def test_directions_of_forgetting_are_for_the_removed_rows_alone(trained: ConceptPredictor) -> None:
    """With a fix in the same edit: it is in both objectives, learned before anything is forgotten."""
    data = edited(TRAIN, fixed=flipped(TRAIN, range(3)), removed=[40, 41, 42], dropped=(1,))
    bench = bench_of(trained, masked(CALIBRATION, (1,)), forgetting_rounds=1)
    forget(bench, data, exactly(100.0))
    (model, u), *_ = bench.solved
    with_removed = data.after.joined(data.masked(TRAIN.take(torch.tensor([40, 41, 42]))))
    after = objective_gradient(model, data.after, 0.0)
    for name, value in vectors.axpy(-1.0, after, objective_gradient(model, with_removed, 0.0)).items():
        torch.testing.assert_close(u[name], value, rtol=0, atol=1e-11)


def test_dropping_follows_the_kept_objective_and_leaves_dropped_rows(trained: ConceptPredictor) -> None:
    data = edited(TRAIN, dropped=(0, 3))
    bench = bench_of(trained, masked(CALIBRATION, (0, 3)))
    (step,) = drop(bench, data)
    ((_, u),) = bench.solved
    for name, value in objective_gradient(trained, data.after, TRAINING["weight_decay"]).items():
        torch.testing.assert_close(u[name], -value, rtol=0, atol=1e-11)
    assert torch.equal(bench.model.head.weight[[0, 3]], trained.head.weight[[0, 3]])
    assert torch.equal(bench.model.head.bias[[0, 3]], trained.head.bias[[0, 3]])
    # Never worse for unseen rows than plain deletion of the head's rows.
    assert step.loss_after <= step.loss_before
    assert step.loss_after == pytest.approx(bench.loss(masked(CALIBRATION, (0, 3))), rel=1e-12)


def test_phases_without_rows_of_their_own_do_nothing(trained: ConceptPredictor) -> None:
    bench = bench_of(trained)
    data = edited(TRAIN)
    assert drop(bench, data) == learn(bench, data) == forget(bench, data) == []
    assert not bench.solved
    for name, value in trained.state_dict().items():
        assert torch.equal(bench.model.state_dict()[name], value)


def test_forgetting_reaches_its_level_and_no_more(trained: ConceptPredictor) -> None:
    data = edited(TRAIN, removed=list(range(10)))
    removed = TRAIN.take(torch.arange(10))
    bench = bench_of(trained)
    start = bench.loss(removed)
    steps = forget(bench, data, exactly(1.1 * start))
    assert steps[0].loss_before == pytest.approx(start)
    # Bisection ends below the level; another round is taken only when it is missed by more than three per cent.
    assert 1.06 * start < steps[-1].loss_after <= 1.1 * start
    assert bench.loss(removed) == pytest.approx(steps[-1].loss_after)


@pytest.mark.parametrize("level", [0.0, 0.5])
def test_rows_already_past_their_level_are_left_alone(trained: ConceptPredictor, level: float) -> None:
    data = edited(TRAIN, removed=list(range(10)))
    bench = bench_of(trained)
    assert forget(bench, data, exactly(level * bench.loss(TRAIN.take(torch.arange(10))))) == []


def test_rows_learned_already_are_left_alone(trained: ConceptPredictor) -> None:
    """Added rows equal to rows that fit better than most."""
    losses = concept_losses(predict_logits(trained, TRAIN.images), TRAIN.concepts)
    easy = TRAIN.take(losses.argsort()[:5])
    bench = bench_of(trained)
    assert learn(bench, edited(TRAIN, added=replace(easy, sample_ids=easy.sample_ids + 1000))) == []
    assert not bench.solved


def test_learning_has_a_level_where_every_row_is_touched(trained: ConceptPredictor) -> None:
    """No untouched row is left to say what a training row's loss is; then it is what theirs was before."""
    data = edited(TRAIN, fixed=[(i, 1, 1 - int(TRAIN.concepts[i, 1])) for i in range(60)])
    bench = bench_of(trained)
    steps = learn(bench, data)
    assert steps
    expected = float(concept_losses(predict_logits(trained, TRAIN.images), TRAIN.concepts).mean())
    assert all(step.level == pytest.approx(expected) for step in steps)
    assert all(math.isfinite(step.loss_after) for step in steps)


@pytest.mark.parametrize("removed", [5, 55])
def test_unknown_labels_lower_the_level_of_the_rows_that_have_them(removed: int) -> None:
    """Every known label loses ln 2 here, so rows with few known labels are at the level already, few rows or many."""
    model = tiny_net()
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    sparse = replace(TRAIN, concepts=TRAIN.concepts.clone())
    sparse.concepts[:removed, 1:] = UNKNOWN
    bench = bench_of(model)
    steps = forget(bench, edited(sparse, removed=list(range(removed))))
    assert [step.level for step in steps] == [pytest.approx(math.log(2))]
    assert [step.scale for step in steps] == [0.0]
    assert CONCEPTS == 4


def test_rows_without_any_known_label_have_nothing_to_forget(trained: ConceptPredictor) -> None:
    sparse = replace(TRAIN, concepts=TRAIN.concepts.clone())
    sparse.concepts[:3] = UNKNOWN
    bench = bench_of(trained)
    steps = forget(bench, edited(sparse, removed=[0, 1, 2]))
    assert all(step.scale == 0.0 for step in steps)
    for name, value in trained.state_dict().items():
        assert torch.equal(bench.model.state_dict()[name], value)


def test_one_held_out_row_is_enough(trained: ConceptPredictor) -> None:
    losses = concept_losses(predict_logits(trained, CALIBRATION.images), CALIBRATION.concepts)
    bench = bench_of(trained, CALIBRATION.take(losses.argmax()[None]))
    steps = forget(bench, edited(TRAIN, removed=[0, 1]))
    assert steps
    for step in steps:
        assert step.unseen is not None
        assert step.loss_before < step.unseen.low < step.unseen.value < step.unseen.high < math.inf
