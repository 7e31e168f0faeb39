"""Directions and lengths of the movements, on tiny nets in double precision."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from tests.worker.editing.moving import CALIBRATION, TRAIN, TRAINING, bench_of, flipped, masked, trained_net
from tests.worker.editing.rows import CONCEPTS, edited, objective_gradient, random_rows, tiny_net
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses, predict_logits
from worker.curvature import vectors
from worker.data.tensors import LabelledImages
from worker.editing.concepts import SERVED, extend
from worker.editing.edited_data import UNKNOWN
from worker.editing.forgetting import forget
from worker.editing.learning import learn
from worker.editing.unseen import Level

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def trained() -> ConceptPredictor:
    return trained_net()


def exactly(value: float) -> Level:
    return Level(value, value, value)


@pytest.mark.parametrize("dropped", [(), (1,)])
def test_the_direction_of_learning_is_for_the_gradient_of_what_is_to_be_learned(
    trained: ConceptPredictor, dropped: tuple[int, ...]
) -> None:
    """``∇J_before − ∇J_after`` with L2, by dense objectives; both with the rows that are removed later, and without
    the concepts that were dropped already."""
    new = masked(random_rows(5, first_id=900, seed=4), dropped)
    data = edited(TRAIN, fixed=flipped(TRAIN, range(12)), removed=[40, 41], added=new, dropped=dropped)
    bench = bench_of(trained, masked(CALIBRATION, dropped))
    (step,) = learn(bench, data)
    ((model, u),) = bench.solved
    assert step.loss_after < step.loss_before
    weight_decay = TRAINING["weight_decay"]
    before = objective_gradient(model, masked(TRAIN, dropped), weight_decay)
    taught = data.after.joined(masked(TRAIN.take(torch.tensor([40, 41])), dropped))
    for name, value in vectors.axpy(-1.0, objective_gradient(model, taught, weight_decay), before).items():
        torch.testing.assert_close(u[name], value, rtol=0, atol=1e-11)


def test_directions_of_forgetting_are_for_the_removed_rows_alone(trained: ConceptPredictor) -> None:
    """With a fix in the same edit: it is in both objectives, learned before anything is forgotten."""
    data = edited(TRAIN, fixed=flipped(TRAIN, range(3)), removed=[40, 41, 42], dropped=(1,))
    bench = bench_of(trained, masked(CALIBRATION, (1,)))
    forget(bench, data, exactly(100.0))
    (model, u), *_ = bench.solved
    with_removed = data.after.joined(data.masked(TRAIN.take(torch.tensor([40, 41, 42]))))
    after = objective_gradient(model, data.after, 0.0)
    for name, value in vectors.axpy(-1.0, after, objective_gradient(model, with_removed, 0.0)).items():
        torch.testing.assert_close(u[name], value, rtol=0, atol=1e-11)


def test_phases_without_rows_of_their_own_do_nothing(trained: ConceptPredictor) -> None:
    bench = bench_of(trained)
    data = edited(TRAIN)
    assert extend(bench, data) == learn(bench, data) == forget(bench, data) == []
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
    """Every known label loses ln 2 here, so rows with one known label of four are at their level already."""
    model = tiny_net()
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    sparse = replace(TRAIN, concepts=TRAIN.concepts.clone())
    sparse.concepts[:removed, 1:] = UNKNOWN
    bench = bench_of(model)
    assert forget(bench, edited(sparse, removed=list(range(removed)))) == []
    assert not bench.solved
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
        assert step.loss_before <= step.unseen.low < step.unseen.value < step.unseen.high < math.inf


def without_features_for(model: ConceptPredictor, concept: int) -> ConceptPredictor:
    """The same, with a row of zeros for the concept: each of its labels costs ln 2."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.head.weight[concept] = 0.0
        model.head.bias[concept] = 0.0
    return model


def held_out_where(model: ConceptPredictor, served: bool) -> LabelledImages:
    """Rows of which the others' labels are what the model would have, in whole or not at all."""
    labels = (predict_logits(model, CALIBRATION.images) > 0).long()
    labels = labels if not served else 1 - labels
    labels[:, 3] = CALIBRATION.concepts[:, 3]
    return replace(CALIBRATION, concepts=labels)


def test_extending_follows_the_new_labels_alone(trained: ConceptPredictor) -> None:
    """By dense objectives; rows that leave have no new labels, and other operations do not count."""
    data = edited(TRAIN, fixed=flipped(TRAIN, range(3)), removed=[40, 41], new=(3,))
    held_out = held_out_where(trained, served=False)
    bench = bench_of(without_features_for(trained, 3), held_out)
    (step,) = extend(bench, data)
    ((model, u),) = bench.solved
    after = replace(data.before, concepts=data.before.concepts.clone())
    after.concepts[:, 3] = TRAIN.concepts[:, 3]
    after.concepts[[40, 41], 3] = UNKNOWN
    before, wanted = (objective_gradient(model, rows, 0.0) for rows in (data.before, after))
    for name, value in vectors.axpy(-1.0, wanted, before).items():
        torch.testing.assert_close(u[name], value, rtol=0, atol=1e-11)
    assert step.loss_after <= step.loss_before
    assert step.loss_after == pytest.approx(bench.loss(held_out), rel=1e-12)


def test_a_concept_that_the_features_serve_as_well_as_others_needs_no_step(trained: ConceptPredictor) -> None:
    bench = bench_of(without_features_for(trained, 3), held_out_where(trained, served=True))
    model = copy.deepcopy(bench.model)
    assert extend(bench, edited(TRAIN, new=(3,))) == []
    assert not bench.solved
    for name, value in model.state_dict().items():
        assert torch.equal(bench.model.state_dict()[name], value)


@pytest.mark.parametrize(("cost", "steps"), [(0.99 * SERVED, 0), (1.01 * SERVED, 1)])
def test_features_serve_a_concept_up_to_a_fifth_more_than_the_others_lose(
    trained: ConceptPredictor, cost: float, steps: int
) -> None:
    """Per known label: the new one has few of them."""
    model = without_features_for(trained, 0)
    for j in range(1, CONCEPTS):
        model = without_features_for(model, j)
    with torch.no_grad():  # of label 1 it says p = 2^-cost, which costs that many times the ln 2 of the others
        model.head.bias[3] = -math.log(2.0**cost - 1)
    held_out = replace(CALIBRATION, concepts=CALIBRATION.concepts.clone())
    held_out.concepts[:, 3] = UNKNOWN
    held_out.concepts[:5, 3] = 1
    held_out.concepts[10:, 1] = UNKNOWN
    assert len(extend(bench_of(model, held_out), edited(TRAIN, new=(3,)))) == steps


@pytest.mark.parametrize("unknown", [[3], [0, 1, 2]])
def test_where_no_label_says_that_features_serve_it_a_concept_gets_its_step(
    trained: ConceptPredictor, unknown: list[int]
) -> None:
    bench = bench_of(trained, masked(CALIBRATION, tuple(unknown)))
    (step,) = extend(bench, edited(TRAIN, new=(3,)))
    assert math.isfinite(step.loss_after)
    assert step.loss_after <= step.loss_before
