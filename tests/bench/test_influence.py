"""Rankings of concepts, also where an edit ended without a model."""

from __future__ import annotations

import math

import torch
from papers.influence import agreement_of


def test_the_first_and_last_ten_are_compared() -> None:
    truth = torch.arange(40.0)
    estimate = truth.clone()
    estimate[[0, 39]] = estimate[[39, 0]]  # the first is taken for the last, and the other way round
    agreed = agreement_of(estimate, truth)
    assert (agreed.size, agreed.top, agreed.bottom) == (10, 9, 9)


def test_concepts_without_a_model_are_left_out() -> None:
    truth = torch.arange(12.0)
    estimate = truth.clone()
    estimate[11] = math.nan
    agreed = agreement_of(estimate, truth)
    assert (agreed.size, agreed.top, agreed.bottom) == (5, 5, 5)
    assert agreed.rank_correlation == 1
    assert agreement_of(torch.full((12,), math.nan), truth).size == 0
