"""Fixtures for every room. Servers start with the first test that asks for one, once per session."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from app.embedded import ServerURLs
from tests.servers import copied_database, emptied_redis, migrated_template, session_servers

# The same examples in every run, and no limit of time for one of them: machines that run tests are shared.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def servers() -> Iterator[ServerURLs]:
    with session_servers() as urls:
        yield urls


@pytest.fixture(scope="session")
def template_database(servers: ServerURLs) -> Iterator[str]:
    """Name of a migrated database to copy."""
    with migrated_template(servers.database_url) as name:
        yield name


@pytest.fixture
def database_url(servers: ServerURLs, template_database: str) -> Iterator[str]:
    """A database of the test's own with the newest schema and no rows."""
    with copied_database(servers.database_url, template_database) as url:
        yield url


@pytest.fixture
def redis_url(servers: ServerURLs) -> Iterator[str]:
    """An empty Redis database."""
    with emptied_redis(servers.redis_url) as url:
        yield url
