"""The label predictor against scikit-learn, autograd, dense Newton steps and the theorems, in double precision."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.autograd.functional import hessian as hessian_by_autograd
from torch.nn.functional import cross_entropy

from worker.cbm.label_predictor import LabelObjective, LabelPredictor, closed_form_edit, fit_label_predictor

CLASSES, K, WEIGHT_DECAY = 4, 5, 1e-2


def problem(n: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities ``[n, k]`` and classes that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(n, K, generator=generator, dtype=torch.float64)
    weight = torch.eye(CLASSES, K, dtype=torch.float64)
    noise = 0.2 * torch.randn(n, CLASSES, generator=generator, dtype=torch.float64)
    return p, (p @ weight.T + noise).argmax(1)


def objective(theta: Tensor, p: Tensor, y: Tensor) -> Tensor:
    """The objective of ``theta`` ``[classes, k + 1]`` in torch's own terms."""
    logits = p @ theta[:, :-1].T + theta[:, -1]
    return cross_entropy(logits, y) + 0.5 * WEIGHT_DECAY * theta.square().sum()


def joint(predictor: LabelPredictor) -> Tensor:
    return torch.cat([predictor.weight, predictor.bias[:, None]], dim=1)


def gradient(theta: Tensor, p: Tensor, y: Tensor) -> Tensor:
    result: Tensor = torch.func.grad(objective)(theta, p, y)
    return result


def hessian(theta: Tensor, p: Tensor, y: Tensor) -> Tensor:
    result: Tensor = hessian_by_autograd(lambda values: objective(values, p, y), theta)  # type: ignore[no-untyped-call]
    return result.reshape(theta.numel(), theta.numel())


def newton_minimiser(p: Tensor, y: Tensor) -> Tensor:
    theta = torch.zeros(CLASSES, p.shape[1] + 1, dtype=torch.float64)
    for _ in range(30):
        step = torch.linalg.solve(hessian(theta, p, y), gradient(theta, p, y).flatten())
        theta = theta - step.view_as(theta)
    assert float(gradient(theta, p, y).abs().max()) < 1e-14
    return theta


def test_minimiser_is_that_of_a_dense_newton_method() -> None:
    """Its gradient is at most 1e-8, and the curvature at least ``λ``: within 1e-6 of the minimiser."""
    p, y = problem()
    fitted = fit_label_predictor(p, y, CLASSES, weight_decay=WEIGHT_DECAY)
    assert float((joint(fitted) - newton_minimiser(p, y)).abs().max()) < 1e-6


def test_minimiser_is_that_of_scikit_learn() -> None:
    """Its ``C`` is ``1/(nλ)``; the bias is a column of ones, because it is regularised here."""
    p, y = problem()
    inputs = torch.cat([p, torch.ones(len(p), 1).double()], dim=1)
    theirs = LogisticRegression(C=1 / (len(p) * WEIGHT_DECAY), fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(inputs.numpy(), y.numpy())
    fitted = fit_label_predictor(p, y, CLASSES, weight_decay=WEIGHT_DECAY)
    assert float((joint(fitted) - torch.from_numpy(theirs.coef_)).abs().max()) < 1e-6


@pytest.mark.parametrize("weight_decay", [1e-6, 1e-3, 1.0])
def test_gradient_vanishes_at_the_minimiser_also_of_separable_rows(weight_decay: float) -> None:
    p = torch.eye(3, dtype=torch.float64).repeat(5, 1)
    y = torch.arange(3).repeat(5)
    fitted = fit_label_predictor(p, y, 3, weight_decay=weight_decay)
    remaining = LabelObjective(p, y, 3, weight_decay).gradient(joint(fitted))
    assert float(remaining.abs().max()) <= 1e-8


def test_value_gradient_and_hessian_products_are_those_of_autograd() -> None:
    p, y = problem(20)
    ours = LabelObjective(p, y, CLASSES, WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(3)
    theta, direction = (torch.randn(CLASSES, K + 1, generator=generator, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(ours.value(theta), objective(theta, p, y), rtol=1e-13, atol=0)
    torch.testing.assert_close(ours.gradient(theta), gradient(theta, p, y), rtol=1e-12, atol=1e-14)
    product = hessian(theta, p, y) @ direction.flatten()
    found = ours.hessian_product(ours.posterior(theta), direction)
    torch.testing.assert_close(found.flatten(), product, rtol=1e-12, atol=1e-14)
    solved = ours.newton_direction(direction, ours.posterior(theta), tolerance=1e-12)
    expected = torch.linalg.solve(hessian(theta, p, y), direction.flatten())
    torch.testing.assert_close(solved.flatten(), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", [0.1, 10.0, 300.0])
def test_a_warm_start_does_not_change_the_minimiser(size: float) -> None:
    p, y = problem()
    cold = fit_label_predictor(p, y, CLASSES, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(5)
    theta = size * torch.randn(CLASSES, K + 1, generator=generator, dtype=torch.float64)
    start = LabelPredictor(theta[:, :-1], theta[:, -1])
    warm = fit_label_predictor(p, y, CLASSES, weight_decay=WEIGHT_DECAY, start=start)
    # Either is within 1e-8/λ of the minimiser.
    assert float((joint(warm) - joint(cold)).abs().max()) < 2e-6
    assert torch.equal(torch.cat([start.weight, start.bias[:, None]], dim=1), theta)


def test_a_start_at_the_minimiser_stays_there() -> None:
    p, y = problem()
    fitted = fit_label_predictor(p, y, CLASSES, weight_decay=WEIGHT_DECAY)
    again = fit_label_predictor(p, y, CLASSES, weight_decay=WEIGHT_DECAY, start=fitted, max_iterations=1)
    assert torch.equal(joint(again), joint(fitted))


def test_single_precision_probabilities_give_a_double_precision_predictor() -> None:
    p, y = problem()
    fitted = fit_label_predictor(p.float(), y.int(), CLASSES, weight_decay=WEIGHT_DECAY)
    assert fitted.weight.dtype == fitted.bias.dtype == torch.float64
    assert fitted.logits(p.float()).dtype == torch.float64


def test_a_class_without_rows_is_predicted_nowhere() -> None:
    p, y = problem()
    fitted = fit_label_predictor(p, y, CLASSES + 1, weight_decay=WEIGHT_DECAY)
    assert fitted.weight.shape == (CLASSES + 1, K)
    assert int(fitted.logits(p).argmax(1).max()) < CLASSES


@pytest.mark.parametrize("weight_decay", [0.0, -1.0])
def test_without_weight_decay_there_may_be_no_minimiser(weight_decay: float) -> None:
    p, y = problem(10)
    with pytest.raises(ValueError, match="positive weight decay"):
        fit_label_predictor(p, y, CLASSES, weight_decay=weight_decay)


def test_too_few_iterations_are_an_error_not_an_answer() -> None:
    p, y = problem()
    with pytest.raises(RuntimeError, match="no convergence in 1 Newton"):
        fit_label_predictor(p, y, CLASSES, weight_decay=WEIGHT_DECAY, max_iterations=1)


def test_without_concepts_the_other_columns_decide_as_before() -> None:
    p, y = problem()
    fitted = fit_label_predictor(p, y, CLASSES, weight_decay=WEIGHT_DECAY)
    fewer = fitted.without_concepts([3, 1])
    masked = p.clone()
    masked[:, [1, 3]] = 0
    torch.testing.assert_close(fewer.logits(p[:, [0, 2, 4]]), fitted.logits(masked))


EDITS = ("labels", "removal", "addition")


def edit_of(name: str) -> tuple[tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor], list[int], tuple[Tensor, Tensor]]:
    """Rows before; rows after under ``ĝ``; rows after under ``ḡ``; removed positions; added rows under ``ĝ``."""
    p, y = problem()
    more, classes = problem(6, seed=1)
    removed = [2, 40, 41] if name == "removal" else []
    if name != "addition":
        more, classes = more[:0], classes[:0]
    kept = torch.tensor([i for i in range(len(p)) if i not in removed])
    intermediate, after = torch.cat([p[kept], more]), torch.cat([y[kept], classes])
    generator = torch.Generator().manual_seed(8)
    shift = 0.02 * torch.randn(intermediate.shape, generator=generator, dtype=torch.float64)
    return (p, y), intermediate, ((intermediate + shift).clamp(0, 1), after), removed, (more, classes)


@pytest.mark.parametrize("name", EDITS)
def test_closed_form_is_that_of_the_theorems(name: str) -> None:
    """``Ã = ±H⁻¹ Σ ∇L_Y`` of the rows that leave or come, then ``B``, with explicit Hessians of sums.

    The theorems assume a stationary start, where the gradient of L2 is what the data's gradients leave over: a sum
    over rows that leave is then one of the objective itself, each row carrying its share ``λθ``.
    """
    before, intermediate, after, removed, (more, classes) = edit_of(name)
    start = newton_minimiser(*before)
    n, n_after = len(before[1]), len(after[1])
    gone = torch.tensor(removed, dtype=torch.long)
    leaving = gradient(start, before[0][gone], before[1][gone]) if removed else torch.zeros_like(start)
    coming = gradient(start, more, classes) if len(classes) else torch.zeros_like(start)
    # Means of n rows on one side, of n' on the other: what stays of the sums is divided by n'.
    u = (len(removed) * leaving - len(classes) * coming) / n_after
    A = torch.linalg.solve(hessian(start, *before), u.flatten()).view_as(start)
    middle = start + A
    drift = gradient(middle, *after) - gradient(middle, intermediate, after[1])
    B = -torch.linalg.solve(hessian(middle, intermediate, after[1]), drift.flatten()).view_as(start)
    found = closed_form_edit(
        LabelPredictor(start[:, :-1], start[:, -1]),
        before=before,
        intermediate=intermediate,
        after=after,
        weight_decay=WEIGHT_DECAY,
    )
    assert n_after == n - len(removed) + len(classes)
    torch.testing.assert_close(joint(found), middle + B, rtol=0, atol=1e-8)
    if name == "labels":
        assert float(A.abs().max()) == 0.0


@pytest.mark.parametrize("name", EDITS)
def test_closed_form_comes_near_the_retrained_predictor(name: str) -> None:
    before, intermediate, after, _, _ = edit_of(name)
    start, target = newton_minimiser(*before), newton_minimiser(*after)
    found = closed_form_edit(
        LabelPredictor(start[:, :-1], start[:, -1]),
        before=before,
        intermediate=intermediate,
        after=after,
        weight_decay=WEIGHT_DECAY,
    )
    # Second-order terms remain: the change here is about a tenth of the weights.
    assert float((joint(found) - target).norm()) < 0.15 * float((start - target).norm())


@pytest.mark.parametrize("concept", range(K))
def test_closed_form_of_a_drop_is_two_newton_steps_of_what_is_left(concept: int) -> None:
    """From the gradient that the kept columns have without the dropped one, to that under the edited concepts."""
    p, y = problem()
    kept = [j for j in range(K) if j != concept]
    start, (_, _, (edited, _), _, _) = newton_minimiser(p, y), edit_of("labels")
    found = closed_form_edit(
        LabelPredictor(start[:, :-1], start[:, -1]),
        before=(p, y),
        intermediate=p[:, kept],
        after=(edited[:, kept], y),
        weight_decay=WEIGHT_DECAY,
        dropped=[concept],
    )
    cut = start[:, [*kept, K]]
    step = torch.linalg.solve(hessian(cut, p[:, kept], y), gradient(cut, p[:, kept], y).flatten())
    middle = cut - step.view_as(cut)
    drift = gradient(middle, edited[:, kept], y) - gradient(middle, p[:, kept], y)
    expected = middle - torch.linalg.solve(hessian(middle, p[:, kept], y), drift.flatten()).view_as(cut)
    torch.testing.assert_close(joint(found), expected, rtol=0, atol=1e-7)
    if concept == K - 1:  # it decides no class, so that the step is short; with the others a Newton step overshoots
        target = newton_minimiser(edited[:, kept], y)
        assert float((joint(found) - target).norm()) < 0.2 * float((cut - target).norm())


def test_closed_form_of_no_change_is_the_start() -> None:
    (p, y), _, _, _, _ = edit_of("labels")
    start = LabelPredictor(torch.randn(CLASSES, K).double(), torch.randn(CLASSES).double())
    found = closed_form_edit(start, before=(p, y), intermediate=p, after=(p, y), weight_decay=WEIGHT_DECAY)
    assert torch.equal(joint(found), joint(start))
