"""Warm passes: how long, along what, and what they leave alone; in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.worker.editing.rows import objective_gradient, random_rows, tiny_net
from worker.cbm.training import concept_losses, predict_logits
from worker.curvature import vectors
from worker.editing.repair import warm_pass

ROWS = random_rows(40)
SETTINGS: dict[str, Any] = {"learning_rate": 1e-2, "weight_decay": 1e-2, "batch_size": 8}


@pytest.mark.parametrize(
    ("share", "batch_size", "steps"), [(0.25, 8, 1), (0.5, 8, 2), (1.0, 8, 5), (0.01, 8, 1), (1.0, 100, 1)]
)
def test_a_pass_is_a_share_of_an_epoch_and_at_least_a_step(share: float, batch_size: int, steps: int) -> None:
    model = tiny_net()
    nothing = vectors.zeros_like(vectors.from_parameters(model))
    assert warm_pass(model, ROWS, nothing, **SETTINGS | {"batch_size": batch_size}, share=share) == steps


def test_a_pass_lowers_the_loss_and_keeps_the_statistics() -> None:
    model = tiny_net()
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    before = concept_losses(predict_logits(model, ROWS.images), ROWS.concepts).mean()
    warm_pass(model, ROWS, vectors.zeros_like(vectors.from_parameters(model)), **SETTINGS, share=2.0)
    assert concept_losses(predict_logits(model, ROWS.images), ROWS.concepts).mean() < before
    for name, value in model.named_buffers():
        assert torch.equal(value, statistics[name])
    assert not model.training
    assert all(value.grad is None for value in model.parameters())


def test_what_training_left_is_not_made_up_for() -> None:
    """Over the rows as they were, with their own gradient (L2 included) as unfinished business, nothing moves.

    Rounding leaves 1e-17 of each gradient, of which Adam makes at most 1e-9 of a step at its epsilon of 1e-8.
    """
    model = tiny_net()
    before = vectors.from_parameters(model)
    unfinished = objective_gradient(model, ROWS, SETTINGS["weight_decay"])
    warm_pass(model, ROWS, unfinished, **SETTINGS | {"batch_size": len(ROWS)}, share=1.0)
    for name, value in vectors.from_parameters(model).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-10)


def test_passes_follow_the_seed() -> None:
    def after(seed: int) -> torch.Tensor:
        model = tiny_net()
        warm_pass(model, ROWS, vectors.zeros_like(vectors.from_parameters(model)), **SETTINGS, share=0.5, seed=seed)
        return vectors.ravel(vectors.from_parameters(model))

    assert torch.equal(after(1), after(1))
    assert not torch.equal(after(1), after(2))
