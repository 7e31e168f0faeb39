"""Fixtures of the service's rooms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.embedded import ServerURLs
from tests.app.service import Service, running_service
from tests.builders import build_key, build_ready_model
from tests.servers import copied_database


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    """The application on a database and a data directory of the test's own."""
    with running_service(database_url, tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def unchanged(
    servers: ServerURLs, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """One service with ``digits-model`` at version 1 for all tests of a module whose requests are refused."""
    with (
        copied_database(servers.database_url, template_database) as url,
        running_service(url, tmp_path_factory.mktemp("unchanged")) as running,
    ):
        with running.sessions.begin() as session:
            build_ready_model(session, running.store, build_key(session)[0])
        yield running
