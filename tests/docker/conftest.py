from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.docker.compose import Cluster, Container, cluster, configuration, doorbell, make_secrets


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    """The file with all profiles."""
    return configuration("*")


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as ``docker/make-secrets.sh`` makes them."""
    directory = tmp_path_factory.mktemp("compose") / "secrets"
    made = make_secrets(directory)
    assert made.returncode == 0, made.stderr
    return directory


@pytest.fixture(scope="session")
def postgres(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server after the init script."""
    with cluster(tmp_path_factory.mktemp("postgres")) as server:
        ran = server.run_init_script(secrets)
        assert ran.returncode == 0, ran.stderr
        yield server


@pytest.fixture(scope="session")
def redis_socket(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with doorbell(tmp_path_factory.mktemp("redis"), secrets / "redis_acl") as socket:
        yield socket


@pytest.fixture(scope="session")
def containers(
    compose: dict[str, Any],
    secrets: Path,
    postgres: Cluster,
    redis_socket: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Container]:
    """Ours by name, with the secrets that compose mounts into each; addresses in these are of servers here."""
    found = {}
    for name in ("migrate", "api", "worker"):
        container = Container(compose["services"][name], tmp_path_factory.mktemp(name))
        for mounted in container.service["secrets"]:
            content = (secrets / mounted["source"]).read_text()
            if content.startswith("postgresql"):
                content = postgres.here(content)
            elif content.startswith("redis://"):
                url = make_url(content)
                assert (url.host, url.port) == ("redis", 6379)
                content = f"unix://{url.username}:{url.password}@{redis_socket}?db=0"
            container.mount(mounted["target"], content)
        found[name] = container
    return found


@pytest.fixture(scope="session")
def migrated(containers: dict[str, Container], postgres: Cluster) -> Cluster:
    """The server after the service that migrates."""
    done = containers["migrate"].run(containers["migrate"].service["command"])
    assert done.returncode == 0, done.stdout + done.stderr
    return postgres
