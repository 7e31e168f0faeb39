"""Tiny nets are faster on one thread, and sums on one thread have one order."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with single_thread():
        yield
