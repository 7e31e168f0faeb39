"""``docker-compose.yml`` as compose itself understands it, and its parts run without containers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from redis import Redis
from redis.exceptions import ConnectionError
from sqlalchemy import make_url

from app.embedded import EmbeddedServers
from app.embedded.programs import DATABASE, PORT, USER, initdb_program, redis_program
from app.settings import SECRETS_DIR
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
DOCKER = PROJECT / "docker"
PROGRAMS = Path(sys.executable).parent
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


def configuration(*profiles: str, **variables: str) -> dict[str, Any]:
    """What ``docker-compose config`` makes of the file, with only ``variables`` set."""
    chosen = [part for profile in profiles for part in ("--profile", profile)]
    found = subprocess.run(
        [PROGRAMS / "docker-compose", *chosen, "config", "--format", "json"],
        cwd=PROJECT,
        env={"PATH": SYSTEM_PATH, "HOME": "/nonexistent"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert not found.stderr
    read: dict[str, Any] = json.loads(found.stdout)
    return read


def make_secrets(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DOCKER / "make-secrets.sh", str(directory)],
        env={"PATH": SYSTEM_PATH},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


class Cluster:
    """An embedded Postgres that asks everybody but its superuser for a password."""

    def __init__(self, servers: EmbeddedServers) -> None:
        self._url = make_url(servers.database_url)
        self._host = str(self._url.query["host"])
        (servers.data_dir / "postgres" / "pg_hba.conf").write_text(
            f"local all {USER} trust\nlocal all all scram-sha-256\n"
        )
        with self.superuser() as connection:
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD 'from initdb'").format(sql.Identifier(USER)))
            connection.execute("SELECT pg_reload_conf()")

    def superuser(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(host=self._host, port=PORT, user=USER, dbname=DATABASE, autocommit=True)

    def login(self, user: str, password: str, database: str = DATABASE) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host=self._host, port=PORT, user=user, password=password, dbname=database, autocommit=True
        )

    def run_init_script(self, secrets: Path) -> subprocess.CompletedProcess[str]:
        """``logins.sh`` with the environment that the postgres image gives it."""
        return subprocess.run(
            [DOCKER / "postgres" / "logins.sh"],
            env={
                "PATH": f"{initdb_program().parent}:{SYSTEM_PATH}",
                "PGHOST": self._host,
                "PGPORT": str(PORT),
                "POSTGRES_USER": USER,
                "POSTGRES_DB": DATABASE,
                SECRETS_DIR: str(secrets),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def program(self, name: str, *arguments: str, given: bytes = b"") -> bytes:
        """Output of one of Postgres' programs, run as superuser."""
        ran = subprocess.run(
            [initdb_program().with_name(name), "--username", USER, *arguments],
            env={"PGHOST": self._host, "PGPORT": str(PORT)},
            input=given,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr.decode()
        return ran.stdout

    def here(self, url: str) -> str:
        """A URL of the database in its container, made one of this server."""
        parsed = make_url(url)
        assert (parsed.host, parsed.port, parsed.database) == ("postgres", 5432, DATABASE)
        local = parsed.set(host=None, port=None, query=self._url.query)
        return local.render_as_string(hide_password=False)


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    with EmbeddedServers(directory, redis=False, durable=False) as servers:
        yield Cluster(servers)


@contextmanager
def doorbell(directory: Path, acl: Path) -> Iterator[Path]:
    """Path of a socket of a Redis with the container's configuration."""
    socket = directory / "redis.sock"
    own = {"port": "0", "unixsocket": str(socket), "dir": str(directory), "aclfile": str(acl)}
    arguments = [part for name, value in own.items() for part in (f"--{name}", value)]
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen(
            [redis_program(), DOCKER / "redis" / "redis.conf", *arguments], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: _answers(socket), message=(directory / "redis.log").read_text())
        yield socket
    finally:
        process.terminate()
        process.wait(10)


def _answers(socket: Path) -> bool:
    with Redis(unix_socket_path=str(socket)) as client:
        try:
            return bool(client.ping())
        except (ConnectionError, FileNotFoundError):
            return False


@dataclass(frozen=True)
class Container:
    """A service of the file, run as a process here: its command, its environment, its secrets."""

    service: dict[str, Any]
    directory: Path

    def mount(self, target: str, content: str) -> None:
        secrets = self.directory / "secrets"
        secrets.mkdir(parents=True, exist_ok=True)
        (secrets / target).write_text(content)

    def environment(self, **changes: str) -> dict[str, str]:
        return {
            "PATH": f"{PROGRAMS}:{SYSTEM_PATH}",
            "OMP_NUM_THREADS": "1",
            "MODELMEND_DATA_DIR": str(self.directory / "data"),
            SECRETS_DIR: str(self.directory / "secrets"),
            **self.service.get("environment", {}),
            **changes,
        }

    def run(self, command: Sequence[str], **changes: str) -> subprocess.CompletedProcess[str]:
        """Another command in the same container."""
        return subprocess.run(
            command,
            env=self.environment(**changes),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def running(self, **changes: str) -> Iterator[subprocess.Popen[bytes]]:
        """Its command, for as long as this is entered; its output in ``directory/output``."""
        with (self.directory / "output").open("wb") as output:
            process = subprocess.Popen(
                self.service["command"],
                env=self.environment(**changes),
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)

    def output(self) -> str:
        return (self.directory / "output").read_text()
