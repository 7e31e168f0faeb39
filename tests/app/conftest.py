"""Fixtures of the service's rooms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.service import Service, running_service


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    """The application on a database and a data directory of the test's own."""
    with running_service(database_url, tmp_path) as running:
        yield running
