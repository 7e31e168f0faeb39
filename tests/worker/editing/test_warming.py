"""Warm passes are taken where they are asked for, and kept where they serve."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.worker.editing.moving import TRAIN, bench_of, flipped, trained_net
from tests.worker.editing.rows import edited
from worker.cbm.concept_predictor import ConceptPredictor
from worker.editing.bench import Bench, Step
from worker.editing.edited_data import EditedData
from worker.editing.warming import warm

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def trained() -> ConceptPredictor:
    return trained_net()


@pytest.fixture(scope="module")
def data() -> EditedData:
    return edited(TRAIN, fixed=flipped(TRAIN, range(12)))


def taught(bench: Bench, data: EditedData, level: float, before: float | None = None) -> Step:
    """A step of learning that ended where the model is."""
    loss = bench.loss(data.after.take(data.fixed))
    return Step("learn", 1.0, 1.0, 3, 0.1, "max_iterations", level, loss if before is None else before, loss)


def test_nothing_is_warmed_after_a_step_that_did_it_all(trained: ConceptPredictor, data: EditedData) -> None:
    bench = bench_of(trained)
    step = taught(bench, data, level=bench.loss(data.after.take(data.fixed)), before=10.0)
    assert warm(bench, data, [step], bench.held_out_loss) == []
    assert all(torch.equal(bench.model.state_dict()[k], v) for k, v in trained.state_dict().items())


def test_nothing_is_warmed_where_nothing_was_taught(trained: ConceptPredictor) -> None:
    bench = bench_of(trained)
    assert warm(bench, edited(TRAIN, removed=[1, 2]), [], 0.5 * bench.held_out_loss) == []


def test_a_step_that_fell_short_is_helped_and_the_report_is_true(trained: ConceptPredictor, data: EditedData) -> None:
    bench = bench_of(trained, warm_rate=10.0)
    before, held_out = bench.loss(data.after.take(data.fixed)), bench.held_out_loss
    (report,) = warm(bench, data, [taught(bench, data, level=0.3 * before)], held_out)
    assert report.phase == "warm_pass"
    assert 1 <= report.iterations <= bench.settings.warm_passes
    assert report.loss_before == pytest.approx(before)
    assert report.loss_after == pytest.approx(bench.loss(data.after.take(data.fixed)))
    assert report.loss_after < before


def test_a_pass_that_breaks_the_model_is_undone(trained: ConceptPredictor, data: EditedData) -> None:
    bench = bench_of(trained, warm_rate=3000.0)
    state = copy.deepcopy(bench.model.state_dict())
    (report,) = warm(bench, data, [taught(bench, data, level=0.0)], bench.held_out_loss)
    assert report.norm == 0.0
    assert report.loss_after == report.loss_before
    for name, value in bench.model.state_dict().items():
        assert torch.equal(value, state[name])


def test_the_rest_is_repaired_where_it_paid(trained: ConceptPredictor, data: EditedData) -> None:
    """The level is reached, but the held-out loss was a tenth lower once: one pass, kept only if it lowers it."""
    bench = bench_of(trained)
    held_out = bench.held_out_loss
    step = taught(bench, data, level=bench.loss(data.after.take(data.fixed)), before=10.0)
    (report,) = warm(bench, data, [step], held_out / 1.1)
    assert report.iterations == 1
    assert bench.held_out_loss <= held_out
