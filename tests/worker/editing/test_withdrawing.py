"""Labels that are withdrawn are forgotten, those that are corrected are learned, also of one and the same row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.worker.editing.moving import CALIBRATION, TRAIN, TRAINING, bench_of, factors_of, trained_net
from tests.worker.editing.rows import CLASSES, edited, objective_gradient
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import fit_label_predictor
from worker.cbm.training import predict_logits
from worker.curvature import vectors
from worker.editing.bench import Settings
from worker.editing.edited_data import UNKNOWN
from worker.editing.engine import EditInput, edit
from worker.editing.learning import learn
from worker.editing.unseen import transported
from worker.editing.withdrawing import label_losses, withdraw

pytestmark = pytest.mark.usefixtures("double")

LOST = [(i, j, UNKNOWN) for i in range(8) for j in (0, 2)]


@pytest.fixture(scope="module")
def trained() -> ConceptPredictor:
    return trained_net()


def test_only_the_lost_labels_of_a_row_leave() -> None:
    data = edited(TRAIN, fixed=[*LOST, (0, 1, 1 - int(TRAIN.concepts[0, 1]))], removed=[40], dropped=(3,))
    rows = data.withdrawals()
    own = {int(TRAIN.sample_ids[i]): i for i in range(8)}
    assert set(rows.sample_ids.tolist()) == own.keys()
    for sample, labels in zip(rows.sample_ids.tolist(), rows.concepts, strict=True):
        assert labels.tolist() == [int(TRAIN.concepts[own[sample], 0]), -1, int(TRAIN.concepts[own[sample], 2]), -1]


def test_there_is_nothing_to_learn_of_a_withdrawn_label(trained: ConceptPredictor) -> None:
    data = edited(TRAIN, fixed=LOST)
    bench = bench_of(trained)
    assert len(data.corrected) == 0
    assert len(data.lessons().fixed) == 0
    assert learn(bench, data) == []
    assert not bench.solved


def test_a_row_may_have_both(trained: ConceptPredictor) -> None:
    """What is learned is learned as if the withdrawn labels were there still; then these are forgotten."""
    value = 1 - int(TRAIN.concepts[3, 1])
    data = edited(TRAIN, fixed=[*LOST, (3, 1, value)])
    assert data.after.sample_ids[data.corrected].tolist() == [int(TRAIN.sample_ids[3])]
    assert len(data.withdrawn) == len(data.fixed) == 8
    taught = data.lessons()
    assert taught.after.sample_ids[taught.fixed].tolist() == [int(TRAIN.sample_ids[3])]
    (row,) = taught.after.concepts[taught.fixed]
    assert row.tolist() == [int(TRAIN.concepts[3, 0]), value, *TRAIN.concepts[3, 2:].tolist()]


def test_the_direction_is_for_the_objective_without_the_labels(trained: ConceptPredictor) -> None:
    """Each label as a row of its own, on dense objectives. From leaving the labels out of their rows this differs by
    ``−m/(n + m)`` times the data term's gradient before, which training has brought to ``−λθ``: a little L2."""
    data = edited(TRAIN, fixed=LOST)
    bench = bench_of(trained)
    withdraw(bench, data)
    (model, u), *_ = bench.solved
    n, m = len(TRAIN), 8
    alone = data.withdrawals()
    with_labels = objective_gradient(model, data.after.joined(alone), 0.0)
    after = objective_gradient(model, data.after, 0.0)
    for name, value in vectors.axpy(-1.0, after, with_labels).items():
        torch.testing.assert_close(u[name], value, rtol=0, atol=1e-11)
    exact = vectors.axpy(-1.0, after, objective_gradient(model, TRAIN, 0.0))
    left = objective_gradient(model, TRAIN, 0.0)
    for name, value in vectors.axpy(-1.0, exact, u).items():
        torch.testing.assert_close(value, -m / (n + m) * left[name], rtol=0, atol=1e-11)


def test_the_level_is_told_label_by_label_and_concept_by_concept(trained: ConceptPredictor) -> None:
    data = edited(TRAIN, fixed=LOST)
    bench = bench_of(trained)
    (step,) = withdraw(bench, data)
    rest = data.after.take(data.untouched)
    told = []
    for j in (0, 2):
        lost, here, there = (
            label_losses(predict_logits(trained, rows.images), rows.concepts)[:, j]
            for rows in (data.withdrawals(), rest, CALIBRATION)
        )
        told.append(transported(lost, here, there)[0])
    assert step.phase == "withdraw"
    assert step.level == pytest.approx(float(torch.cat(told).sum()) / 8, rel=1e-9)
    assert step.unseen is not None
    assert step.unseen.low < step.unseen.value < step.unseen.high


def test_their_loss_rises_to_the_level_and_no_further(trained: ConceptPredictor) -> None:
    data = edited(TRAIN, fixed=LOST)
    bench = bench_of(trained)
    (step,) = withdraw(bench, data)
    after = bench.loss(data.withdrawals())
    assert step.level is not None
    assert step.level > 1.2 * step.loss_before
    # Bisection ends below the level, within a sixteenth of the last doubling.
    assert 0.9 * step.level < after <= step.level
    assert after == pytest.approx(step.loss_after)


def test_a_concept_that_nobody_else_knows_tells_nothing(trained: ConceptPredictor) -> None:
    """No held-out label is known: the labels are left where they are, which is all that can be said."""
    unknown = CALIBRATION.concepts.clone()
    unknown[:, [0, 2]] = UNKNOWN
    bench = bench_of(trained, replace(CALIBRATION, concepts=unknown))
    assert withdraw(bench, edited(TRAIN, fixed=LOST)) == []


def test_unknown_labels_have_no_loss() -> None:
    losses = label_losses(torch.tensor([[0.0, 3.0]]), torch.tensor([[1, UNKNOWN]]))
    assert float(losses[0, 0]) == pytest.approx(math.log(2))
    assert math.isnan(float(losses[0, 1]))


def test_an_edit_forgets_what_was_withdrawn(trained: ConceptPredictor) -> None:
    data = edited(TRAIN, fixed=[*LOST, (20, 1, 1 - int(TRAIN.concepts[20, 1]))], removed=[50, 51])
    probabilities = torch.sigmoid(predict_logits(trained, TRAIN.images))
    outcome = edit(
        EditInput(
            model=trained,
            label_predictor=fit_label_predictor(probabilities, TRAIN.classes, CLASSES, weight_decay=1e-2),
            factors=factors_of(trained),
            data=data,
            calibration=CALIBRATION,
            concepts=[f"concept {j}" for j in range(4)],
            classes=[f"class {c}" for c in range(CLASSES)],
            training={**TRAINING, "label_weight_decay": 1e-2},
        ),
        method="solve",
        label_solver="converged",
        tolerance={"concept_f1": 1.0, "label_f1": 1.0},
        settings=Settings(),
        progress=lambda stage, done, total: None,
    )
    phases = [step["phase"] for step in outcome.report["step"]["steps"]]
    assert [phase for phase in phases if phase in ("withdraw", "forget")] == ["withdraw", "forget"]
    lost = data.withdrawals()
    before, after = (
        float(label_losses(predict_logits(model, lost.images), lost.concepts).nanmean())
        for model in (trained, outcome.model)
    )
    assert after > 1.2 * before
