"""Edit gradients against dense differences of two objectives' gradients, in double precision."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worker.editing.rows import (
    CONCEPTS,
    SIZE,
    edited,
    linear_net,
    objective,
    objective_gradient,
    random_rows,
    tiny_net,
)
from worker.cbm.arithmetic import BATCH
from worker.cbm.concept_predictor import ConceptPredictor
from worker.curvature.vectors import ParameterVector, axpy
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData
from worker.editing.gradients import after_gradient, edit_gradient, loss_gradient

EXACT = 1e-11
"""Of sums of some hundred float64 terms of order one."""
WEIGHT_DECAY = 0.03

BEFORE = random_rows(20)
NEW = random_rows(5, first_id=100, seed=1)
FLIP = [(i, j, int(BEFORE.concepts[i, j] != 1)) for i, j in ((0, 0), (0, 3), (4, 1), (11, 2))]
"""Labels that were 0, 1 or unknown and are 1 or 0 now."""

EDITS: dict[str, dict[str, Any]] = {
    "fix": {"fixed": FLIP},
    "fix to unknown": {"fixed": [(2, 0, UNKNOWN), (3, 1, UNKNOWN)]},
    "remove": {"removed": [1, 6, 19]},
    "add": {"added": NEW},
    "drop": {"dropped": (1, 3)},
    "replace as many rows": {"removed": [0, 1, 2, 3, 4], "added": NEW},
    "fix and drop": {"fixed": FLIP, "dropped": (3,)},
    "remove and drop": {"removed": [5, 6], "dropped": (0,)},
    "everything": {"fixed": FLIP, "removed": [4, 7, 8], "added": NEW, "dropped": (1,)},
    "new": {"new": (3,)},
    "new and everything": {"fixed": FLIP[2:], "removed": [5], "added": NEW, "dropped": (0,), "new": (3,)},
    "nothing": {},
}


def assert_equal(found: ParameterVector, expected: ParameterVector, tolerance: float = EXACT) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) <= tolerance, name


def dense_edit_gradient(model: ConceptPredictor, data: EditedData) -> ParameterVector:
    before = objective_gradient(model, data.before, WEIGHT_DECAY)
    return axpy(-1.0, objective_gradient(model, data.after, WEIGHT_DECAY), before)


@pytest.mark.parametrize("name", EDITS)
def test_edit_gradient_is_the_difference_of_the_objectives_gradients(name: str) -> None:
    model, data = tiny_net(), edited(BEFORE, **EDITS[name])
    assert_equal(edit_gradient(model, data, data.untouched), dense_edit_gradient(model, data))


@pytest.mark.parametrize("name", EDITS)
def test_after_gradient_is_that_of_the_edited_objective(name: str) -> None:
    model, data = tiny_net(), edited(BEFORE, **EDITS[name])
    expected = objective_gradient(model, data.after, WEIGHT_DECAY)
    assert_equal(after_gradient(model, data, data.untouched, WEIGHT_DECAY), expected)


def test_touched_rows_alone_decide_where_as_many_rows_stay() -> None:
    """No sample is needed then: nothing of the untouched rows is left in the difference."""
    model = tiny_net()
    for name in ("fix", "replace as many rows"):
        data = edited(BEFORE, **EDITS[name])
        nobody = data.untouched[:0]
        assert_equal(edit_gradient(model, data, nobody), dense_edit_gradient(model, data))


def test_every_row_touched_needs_no_sample() -> None:
    model = tiny_net()
    data = edited(BEFORE, fixed=[(i, 0, int(BEFORE.concepts[i, 0] != 1)) for i in range(1, 20)], removed=[0])
    assert len(data.untouched) == 0
    assert_equal(edit_gradient(model, data, data.untouched), dense_edit_gradient(model, data))
    expected = objective_gradient(model, data.after, WEIGHT_DECAY)
    assert_equal(after_gradient(model, data, data.untouched, WEIGHT_DECAY), expected)


@pytest.mark.parametrize("name", ["remove", "drop", "everything", "new and everything"])
def test_samples_of_untouched_rows_are_right_on_average(name: str) -> None:
    """Each untouched row once as the only one sampled: the mean of the estimates is exact."""
    model, data = tiny_net(), edited(BEFORE, **EDITS[name])
    estimates = [edit_gradient(model, data, position[None]) for position in data.untouched]
    mean = {name: torch.stack([e[name] for e in estimates]).mean(0) for name in estimates[0]}
    assert_equal(mean, dense_edit_gradient(model, data))
    after = [after_gradient(model, data, position[None], WEIGHT_DECAY) for position in data.untouched]
    mean = {name: torch.stack([e[name] for e in after]).mean(0) for name in after[0]}
    assert_equal(mean, objective_gradient(model, data.after, WEIGHT_DECAY))


def test_a_removed_row_with_a_fixed_label_counts_as_removed() -> None:
    model = tiny_net()
    both, alone = (edited(BEFORE, removed=[4, 7], fixed=fixed) for fixed in ([FLIP[2]], []))
    assert_equal(edit_gradient(model, both, both.untouched), edit_gradient(model, alone, alone.untouched))


def test_batches_and_mode_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_net()
    whole = loss_gradient(model, BEFORE)
    monkeypatch.setitem(BATCH, "cpu", 7)
    model.train()  # statistics must stay, and must be those that are used
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    assert_equal(loss_gradient(model, BEFORE), whole)
    for name, value in model.named_buffers():
        assert torch.equal(value, statistics[name])


def test_frozen_parameters_are_left_out() -> None:
    model = tiny_net()
    model.head.bias.requires_grad_(False)
    found = loss_gradient(model, BEFORE)
    assert "head.bias" not in found
    assert "head.weight" in found


@pytest.fixture(scope="module")
def stationary() -> ConceptPredictor:
    """Logistic regression with L2, converged on ``BEFORE``."""
    model = linear_net()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=2000, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(model, BEFORE, WEIGHT_DECAY)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    largest = max(float(value.abs().max()) for value in objective_gradient(model, BEFORE, WEIGHT_DECAY).values())
    assert largest < 1e-8
    return model


STATIONARY = 2e-8
"""The gradient that training left is below 1e-8."""


def backpropagated(model: ConceptPredictor, rows: LabelledImages, residuals: Tensor) -> ParameterVector:
    """``Σ_i J_iᵀ r_i`` of a linear model, written out."""
    return {"head.weight": residuals.T @ rows.images.reshape(-1, SIZE * SIZE), "head.bias": residuals.sum(0)}


def residual(model: ConceptPredictor, rows: LabelledImages) -> Tensor:
    known = rows.concepts != UNKNOWN
    with torch.no_grad():
        probabilities: Tensor = torch.sigmoid(model(rows.images))
    return torch.where(known, probabilities - rows.concepts, torch.zeros(()).double())


def theta(model: ConceptPredictor) -> ParameterVector:
    return {name: value.detach() for name, value in model.named_parameters()}


def test_formula_for_fixed_labels(stationary: ConceptPredictor) -> None:
    """``(1/n) Σ (c̃ − c) J_wᵀ e_r``: the probabilities cancel."""
    known = [(i, j) for i, j in ((0, 0), (0, 1), (4, 1), (11, 2)) if BEFORE.concepts[i, j] != UNKNOWN]
    data = edited(BEFORE, fixed=[(i, j, 1 - int(BEFORE.concepts[i, j])) for i, j in known])
    change = torch.zeros(len(BEFORE), CONCEPTS, dtype=torch.float64)
    for i, j in known:
        change[i, j] = 1 - 2 * int(BEFORE.concepts[i, j])
    expected = backpropagated(stationary, BEFORE, change / len(BEFORE))
    assert_equal(edit_gradient(stationary, data, data.untouched), expected)


def test_formula_for_removed_rows(stationary: ConceptPredictor) -> None:
    """``(1/(n−m)) Σ_G (J_rᵀ (p_r − c_r) + λθ)``."""
    data = edited(BEFORE, removed=[1, 6, 19])
    gone, n, m = BEFORE.take(torch.tensor([1, 6, 19])), len(BEFORE), 3
    gradient = backpropagated(stationary, gone, residual(stationary, gone) / (n - m))
    expected = axpy(WEIGHT_DECAY * m / (n - m), theta(stationary), gradient)
    assert_equal(edit_gradient(stationary, data, data.untouched), expected, STATIONARY)


def test_formula_for_added_rows(stationary: ConceptPredictor) -> None:
    """``−(1/(n+m)) Σ_N (J_kᵀ (p_k − c_k) + λθ)``."""
    data = edited(BEFORE, added=NEW)
    n, m = len(BEFORE), len(NEW)
    gradient = backpropagated(stationary, NEW, -residual(stationary, NEW) / (n + m))
    expected = axpy(-WEIGHT_DECAY * m / (n + m), theta(stationary), gradient)
    assert_equal(edit_gradient(stationary, data, data.untouched), expected, STATIONARY)


def test_formula_for_dropped_concepts(stationary: ConceptPredictor) -> None:
    """``(1/n) Σ_i Σ_{j∈M} (p_ij − c_ij) J_iᵀ e_j``; the L2 terms cancel."""
    data = edited(BEFORE, dropped=(1, 3))
    masked = residual(stationary, BEFORE)
    masked[:, [0, 2]] = 0
    expected = backpropagated(stationary, BEFORE, masked / len(BEFORE))
    assert_equal(edit_gradient(stationary, data, data.untouched), expected)


def test_unknown_labels_weigh_nothing() -> None:
    model = tiny_net()
    nothing_known = replace(BEFORE, concepts=torch.full_like(BEFORE.concepts, UNKNOWN))
    assert all(bool((value == 0).all()) for value in loss_gradient(model, nothing_known).values())
