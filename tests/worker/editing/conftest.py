from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.worker.threads import one_thread

__all__ = ["one_thread"]


@pytest.fixture
def double() -> Iterator[None]:
    """Double precision by default, in which factors are fitted."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
