"""CBM-IF against dense matrices, and against training to convergence where influence is exact to first order."""

from __future__ import annotations

import pytest
import torch
from papers.direct import Direct, direct_influence, mean_eigenvalue, solved
from rivals import Recipe, Request
from torch import Tensor

from tests.worker.curvature.dense import bernoulli, flat_jacobian, gauss_newton
from tests.worker.editing.rows import CLASSES, edited, linear_net, objective, random_rows, tiny_net
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor, fit_label_predictor
from worker.curvature import GGN, vectors
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import EditedData

DECAY = 0.05  # above a hundredth of the mean eigenvalue, so that the damping is the objective's own L2
RECIPE = Recipe({}, {"weight_decay": DECAY, "label_weight_decay": 1e-2}, CLASSES)
EXACT = Direct(iterations=500, tolerance=1e-12)
ROWS = random_rows(400, unknown=0.0)


def converged(rows: LabelledImages, outputs: list[int] | None = None) -> ConceptPredictor:
    """The minimiser of the convex objective over the rows."""
    model = linear_net()
    for name in ("weight", "bias"):
        value = getattr(model.head, name).detach()
        setattr(model.head, name, torch.nn.Parameter(value if outputs is None else value[outputs]))
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective(model, rows, DECAY)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return model.eval()


def labels_of(model: ConceptPredictor, rows: LabelledImages) -> LabelPredictor:
    p = torch.sigmoid(model(rows.images).detach())
    return fit_label_predictor(p, rows.classes, CLASSES, weight_decay=RECIPE.training["label_weight_decay"])


def test_the_solve_is_that_of_the_dense_matrix() -> None:
    model = tiny_net()
    mask = (ROWS.concepts >= 0).double()
    dense = gauss_newton(flat_jacobian(model, ROWS.images), bernoulli(model, ROWS.images, mask))
    torch.manual_seed(0)
    u = {name: torch.randn_like(value) for name, value in vectors.from_parameters(model).items()}
    solution, damping = solved(model, u, ROWS, RECIPE, EXACT, seed=0)
    assert damping == DECAY
    expected = torch.linalg.solve(dense + damping * torch.eye(len(dense), dtype=dense.dtype), vectors.ravel(u))
    # Conjugate gradients to a residual of 1e-12 at a condition number of about a hundred.
    torch.testing.assert_close(vectors.ravel(solution.vector), expected, rtol=1e-8, atol=1e-9)


def test_the_mean_eigenvalue_is_the_trace_over_the_size() -> None:
    model = tiny_net()
    dense = gauss_newton(flat_jacobian(model, ROWS.images), bernoulli(model, ROWS.images))
    estimate = mean_eigenvalue(GGN(model, ROWS.images), vectors.from_parameters(model), probes=400, seed=0)
    # One probe's standard deviation is about half the trace, so that of 400 is a fortieth.
    assert estimate == pytest.approx(float(dense.trace()) / len(dense), rel=0.1)


@pytest.mark.parametrize(
    "data",
    [
        edited(ROWS, removed=range(3)),
        edited(ROWS, fixed=[(i, 0, 1 - int(ROWS.concepts[i, 0])) for i in range(3)]),
        edited(ROWS, added=random_rows(3, first_id=900, seed=5)),
        edited(ROWS, dropped=(1,)),
    ],
    ids=["removal", "labels", "addition", "concept"],
)
def test_one_step_nears_what_training_anew_gives(data: EditedData) -> None:
    base = converged(data.before)
    request = Request(data, random_rows(20, first_id=500, seed=2))
    (model, label_predictor), seconds, details = direct_influence(
        RECIPE, (base, labels_of(base, data.before)), request, EXACT, seed=0
    )
    kept = request.kept
    anew = converged(request.goal, kept)
    wanted, got, before = (vectors.ravel(vectors.from_parameters(one)) for one in (anew, model, base))
    start = torch.cat([base.head.weight[kept].flatten(), base.head.bias[kept]]).detach()
    moved = (wanted - start).norm()
    if data.dropped:  # nothing else than the dropped rows goes: concepts of a linear net do not share parameters
        assert float((wanted - got).norm()) < 1e-6
    else:
        assert len(before) == len(wanted)
        assert float((wanted - got).norm()) < 0.15 * float(moved)  # what a Newton step leaves is of second order
    assert label_predictor.weight.shape == (CLASSES, len(kept))
    labels_anew = labels_of(anew, request.goal)
    assert float((label_predictor.weight - labels_anew.weight).norm()) < 0.1 * float(labels_anew.weight.norm())
    assert seconds > 0
    assert details["stop"] == "converged"
