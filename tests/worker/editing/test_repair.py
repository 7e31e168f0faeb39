"""Warm passes: how long, over what, and what they leave as it was; in double precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.worker.editing.rows import linear_net, objective_gradient, random_rows, tiny_net
from worker.cbm.training import concept_losses, predict_logits
from worker.curvature import vectors
from worker.editing.repair import _drawn, _sizes, warm_pass

ROWS = random_rows(40)
NOBODY = torch.arange(0)
SETTINGS: dict[str, Any] = {"learning_rate": 1e-2, "weight_decay": 1e-2, "batch_size": 8}


@pytest.mark.parametrize(
    ("share", "batch_size", "steps"), [(0.25, 8, 1), (0.5, 8, 2), (1.0, 8, 5), (0.01, 8, 1), (1.0, 100, 1)]
)
def test_a_pass_is_a_share_of_an_epoch_and_at_least_a_step(share: float, batch_size: int, steps: int) -> None:
    assert warm_pass(tiny_net(), ROWS, NOBODY, **SETTINGS | {"batch_size": batch_size}, share=share) == steps


def test_a_pass_lowers_the_loss_and_moves_the_statistics() -> None:
    model = tiny_net()
    statistics = {name: value.clone() for name, value in model.named_buffers() if "running" in name}
    before = concept_losses(predict_logits(model, ROWS.images), ROWS.concepts).mean()
    warm_pass(model, ROWS, NOBODY, **SETTINGS, share=4.0)
    assert concept_losses(predict_logits(model, ROWS.images), ROWS.concepts).mean() < before
    for name, value in statistics.items():
        assert not torch.equal(model.get_buffer(name), value)
    assert not model.training
    assert all(value.grad is None for value in model.parameters())


@pytest.mark.parametrize("touched", [torch.arange(10), torch.arange(25), torch.arange(40), NOBODY])
def test_the_first_step_is_along_the_whole_objectives_gradient(touched: torch.Tensor) -> None:
    """All rows in one batch, each as often as the others of its kind: the weighted mean is the objective's, and Adam's
    first step is along the gradient's sign."""
    model = linear_net()
    before, gradient = vectors.from_parameters(model), objective_gradient(model, ROWS, 0.0)
    warm_pass(model, ROWS, touched, learning_rate=1e-3, weight_decay=0.0, batch_size=40, share=1.0)
    for name, value in vectors.from_parameters(model).items():
        moved = value - before[name]
        clear = gradient[name].abs() > 1e-3  # Adam's epsilon is 1e-8
        assert bool(clear.any())
        torch.testing.assert_close(moved[clear], -1e-3 * gradient[name][clear].sign(), rtol=1e-4, atol=0)


def test_touched_rows_weigh_no_more_for_being_drawn_more_often() -> None:
    """Two rows of forty fill a quarter of the batch, five times each. They say 1 and six others say 0, so the biases
    of a net that says ½ must fall; ten rows that said 1 would raise them."""
    model, touched = linear_net(), torch.arange(2)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    concepts = torch.full_like(ROWS.concepts, -1)
    concepts[:2], concepts[2:8] = 1, 0
    rows = replace(ROWS, concepts=concepts, images=torch.zeros_like(ROWS.images))
    warm_pass(model, rows, touched, learning_rate=1e-3, weight_decay=0.0, batch_size=40, share=1.0)
    assert bool((model.head.bias < -0.9e-3).all())


@pytest.mark.parametrize(
    ("touched", "rows", "batch", "sizes"),
    [
        (0, 100, 32, (0, 32)),
        (100, 100, 32, (32, 0)),
        (1, 100, 32, (8, 24)),
        (50, 100, 32, (16, 16)),
        (99, 100, 32, (31, 1)),
        (1, 100, 2, (1, 1)),
    ],
)
def test_touched_rows_have_a_quarter_of_a_batch_or_their_share(
    touched: int, rows: int, batch: int, sizes: tuple[int, int]
) -> None:
    assert _sizes(touched, rows, batch) == sizes


def test_no_row_is_drawn_twice_before_all_are_drawn() -> None:
    drawn = _drawn(torch.tensor([3, 5, 8]), 7, torch.Generator().manual_seed(0))
    counts = drawn.bincount(minlength=9)[[3, 5, 8]]
    assert int(counts.sum()) == len(drawn) == 7
    assert int(counts.max()) - int(counts.min()) == 1
    assert len(_drawn(torch.tensor([3]), 0, torch.Generator())) == 0


def test_passes_follow_the_seed() -> None:
    def after(seed: int) -> torch.Tensor:
        model = tiny_net()
        warm_pass(model, ROWS, torch.arange(5), **SETTINGS, share=0.5, seed=seed)
        return vectors.ravel(vectors.from_parameters(model))

    assert torch.equal(after(1), after(1))
    assert not torch.equal(after(1), after(2))
