"""One edit end to end: what it is given stays, what it reports is true, and the paper's step is the paper's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.worker.editing.rows import CLASSES, CONCEPTS, edited, fitted_net, objective_gradient, random_rows
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import fit_label_predictor
from worker.cbm.training import predict_logits
from worker.curvature import vectors
from worker.curvature.factors import fit_factors
from worker.editing import guard
from worker.editing.bench import Settings
from worker.editing.edited_data import UNKNOWN, EditedData
from worker.editing.engine import EditInput, EditOutcome, attempt, edit
from worker.editing.gradients import after_gradient, edit_gradient
from worker.editing.guard import EditRefused
from worker.editing.step import inverse_factors

TRAINING: dict[str, Any] = {
    "weight_decay": 1e-3,
    "label_weight_decay": 1e-2,
    "learning_rate": 1e-3,
    "batch_size": 16,
}
TRAIN = random_rows(60)
NEW = random_rows(6, first_id=900, seed=4)
FLIPS = [(i, 0, int(TRAIN.concepts[i, 0] != 1)) for i in range(10)]
DAMPING = 0.05


pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def trained() -> ConceptPredictor:
    return fitted_net(TRAIN, TRAINING["weight_decay"])


def given(model: ConceptPredictor, data: EditedData) -> EditInput:
    probabilities = torch.sigmoid(predict_logits(model, TRAIN.images))
    return EditInput(
        model=model,
        label_predictor=fit_label_predictor(probabilities, TRAIN.classes, CLASSES, weight_decay=1e-2),
        factors=fit_factors(model, lambda: [(TRAIN.images, None, torch.arange(len(TRAIN)))], seed=0),
        data=data,
        calibration=data.masked(random_rows(40, first_id=500, seed=2)),
        concepts=[f"concept {j}" for j in range(CONCEPTS)],
        classes=[f"class {c}" for c in range(CLASSES)],
        training=TRAINING,
    )


def run(start: EditInput, method: Any = "solve", tolerance: float = 1.0) -> EditOutcome:
    """With room for every row in samples, so that what is reported is exact."""
    return edit(
        start,
        method=method,
        label_solver="converged",
        tolerance={"concept_f1": tolerance, "label_f1": tolerance},
        settings=Settings(damping=DAMPING, norm_rows=1000),
        progress=lambda stage, done, total: None,
    )


def everything() -> EditedData:
    return edited(TRAIN, fixed=FLIPS, removed=[40, 41, 42], added=NEW)


def test_what_is_given_is_not_changed(trained: ConceptPredictor) -> None:
    start = given(trained, everything())
    state, weight = copy.deepcopy(trained.state_dict()), start.label_predictor.weight.clone()
    run(start)
    for name, value in trained.state_dict().items():
        assert torch.equal(value, state[name])
    assert torch.equal(start.label_predictor.weight, weight)


def test_reported_norms_are_those_of_the_step_and_of_the_kept_objectives_gradient(trained: ConceptPredictor) -> None:
    data = everything()
    outcome = run(given(trained, data))
    step = outcome.report["step"]
    before, after = (vectors.from_parameters(model) for model in (trained, outcome.model))
    distance = vectors.norm(vectors.axpy(-1.0, before, after))
    assert step["norm"] == pytest.approx(distance, rel=1e-9)
    assert step["relative_norm"] == pytest.approx(distance / vectors.norm(before), rel=1e-9)
    for when, model in (("before", trained), ("after", outcome.model)):
        expected = vectors.norm(objective_gradient(model, data.after, TRAINING["weight_decay"]))
        assert step["gradient_norm"][when] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("operation", ["fix", "add"])
def test_the_closed_form_is_one_full_step_of_the_factors(trained: ConceptPredictor, operation: str) -> None:
    data = edited(TRAIN, fixed=FLIPS) if operation == "fix" else edited(TRAIN, added=NEW)
    start = given(trained, data)
    outcome = run(start, "closed_form")
    direction = inverse_factors(edit_gradient(trained, data, data.untouched), start.factors, DAMPING)
    expected = vectors.axpy(1.0, direction, vectors.from_parameters(trained))
    for name, value in vectors.from_parameters(outcome.model).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12)


def test_the_closed_form_of_a_drop_follows_the_kept_objective(trained: ConceptPredictor) -> None:
    """Theorem 4.3: its own gradient, not a difference; the head's rows of dropped concepts are deleted."""
    data = edited(TRAIN, dropped=(1,))
    start = given(trained, data)
    outcome = run(start, "closed_form")
    kept = after_gradient(trained, data, data.untouched, TRAINING["weight_decay"])
    direction = inverse_factors(vectors.scale(-1.0, kept), start.factors, DAMPING, (1,))
    expected = vectors.axpy(1.0, direction, vectors.from_parameters(trained))
    rows = [0, 2, 3]
    for name, value in vectors.from_parameters(outcome.model).items():
        whole = expected[name][rows] if name.startswith("head.") else expected[name]
        torch.testing.assert_close(value, whole, rtol=0, atol=1e-12)
    assert outcome.label_predictor.weight.shape == (CLASSES, 3)


def test_every_label_withheld_is_no_reason_to_move(trained: ConceptPredictor) -> None:
    """Rows that come without any known label have nothing to teach, and do no harm."""
    silent = random_rows(5, first_id=900, seed=4, unknown=1.0)
    assert bool((silent.concepts == UNKNOWN).all())
    outcome = run(given(trained, edited(TRAIN, added=silent)))
    for name, value in trained.state_dict().items():
        assert torch.equal(outcome.model.state_dict()[name], value)


def test_a_refusal_names_the_score(trained: ConceptPredictor) -> None:
    """A tolerance below zero asks for a gain that no edit makes."""
    with pytest.raises(EditRefused, match="held-out concept_f1 would fall"):
        run(given(trained, everything()), tolerance=-1.0)


def test_an_emptied_class_is_refused_before_anything_is_computed(trained: ConceptPredictor) -> None:
    gone = [i for i in range(len(TRAIN)) if int(TRAIN.classes[i]) == 1]
    stages: list[str] = []
    with pytest.raises(EditRefused, match="left of: class 1"):
        edit(
            given(trained, edited(TRAIN, removed=gone)),
            method="solve",
            label_solver="converged",
            tolerance={},
            settings=Settings(),
            progress=lambda stage, done, total: stages.append(stage),
        )
    assert stages == []


class TestBrokenModels:
    """Damping near zero: where the factors see no curvature, the closed form's step is longer than numbers are."""

    def broken(self, trained: ConceptPredictor, tolerance: float = 1.0) -> EditOutcome:
        return edit(
            given(trained, everything()),
            method="closed_form",
            label_solver="converged",
            tolerance={"concept_f1": tolerance, "label_f1": tolerance},
            settings=Settings(damping=1e-320),
            progress=lambda stage, done, total: None,
        )

    def test_are_refused_whatever_is_tolerated(self, trained: ConceptPredictor) -> None:
        with pytest.raises(EditRefused, match="not finite numbers") as refusal:
            self.broken(trained)
        assert refusal.value.code == "utility_fell"


def test_a_step_out_of_the_trust_region_is_refused_with_its_numbers(
    trained: ConceptPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths are measured, so none is that long here: the region is made small."""
    monkeypatch.setattr(guard, "TRUST_RADIUS", 0.01)
    arguments: dict[str, Any] = {
        "label_solver": "converged",
        "tolerance": {"concept_f1": 1.0, "label_f1": 1.0},
        "settings": Settings(damping=DAMPING),
        "progress": lambda stage, done, total: None,
    }
    start = given(trained, everything())
    outcome = attempt(start, method="solve", **arguments)
    assert outcome.refusal is not None
    assert outcome.refusal.code == "step_too_long"
    assert outcome.report["step"]["relative_norm"] > 0.01
    assert attempt(start, method="closed_form", **arguments).refusal is None, "it is there for comparison"
    with pytest.raises(EditRefused, match="retrain instead"):
        run(start)
