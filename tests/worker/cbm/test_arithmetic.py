"""A twin says what the model says, faster and a little coarser."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.worker.editing.rows import random_rows, tiny_net
from worker.cbm.arithmetic import BATCH, Twin, batches, quick_type

ROWS = random_rows(30)


def test_double_precision_stays() -> None:
    """So that tests of the mathematics are exact."""
    model = tiny_net()
    assert quick_type(model) == torch.float64
    with torch.no_grad():
        torch.testing.assert_close(Twin(model).logits(ROWS.images), model(ROWS.images), rtol=0, atol=1e-12)


def test_coarse_logits_are_near() -> None:
    """bfloat16 has 8 bits: 0.4% per rounding, over three layers some 2% of the largest logit."""
    model = tiny_net().float()
    images = ROWS.images.float()
    twin = Twin(model)
    twin._twin.to(torch.bfloat16)
    twin.dtype = torch.bfloat16  # whatever this machine's own is
    found = twin.logits(images)
    assert found.dtype == torch.float32
    with torch.no_grad():
        expected = model(images)
    assert float((found - expected).abs().max()) < 0.02 * float(expected.abs().max())
    assert not torch.equal(found, expected)


def test_a_twin_follows_parameters_and_statistics_and_changes_neither() -> None:
    model = tiny_net()
    twin, images = Twin(model), ROWS.images
    before = twin.logits(images)
    with torch.no_grad():
        model.head.weight.mul_(2)
        model.get_buffer("backbone.1.running_mean").add_(1)
        expected = model(images)
    state = copy.deepcopy(model.state_dict())
    torch.testing.assert_close(twin.logits(images), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(before, expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize("rows", [0, 1, 7, 8])
def test_parts_cover_every_row_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BATCH, "cpu", 4)
    covered = [i for part in batches(rows, torch.device("cpu")) for i in range(rows)[part]]
    assert covered == list(range(rows))
    assert Twin(tiny_net()).logits(ROWS.images[:rows]).shape == (rows, 4)
