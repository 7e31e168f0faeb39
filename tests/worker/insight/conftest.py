"""Double precision and one thread for every test of the room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.worker.threads import one_thread

__all__ = ["one_thread"]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
