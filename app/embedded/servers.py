"""Postgres and Redis of our own on one data directory, for as long as this process lives."""

from __future__ import annotations

import os
import pwd
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg
import redis
from psycopg import sql
from redis.backoff import NoBackoff
from redis.retry import Retry

from app.embedded import programs
from app.embedded.directories import DataDirectoryLock, discard, make_socket_directory, remove_dead_pid_file
from app.embedded.errors import EmbeddedServersError
from app.embedded.processes import Launcher, ServerProcess, ServerStartError

START_TIMEOUT = 60.0  # seconds: recovery after a crash replays at most max_wal_size
ORPHANS_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0
READY_LINE = 7  # of postmaster.pid, counted from 0


class EmbeddedServers:
    """Postgres and Redis on ``data_dir``, a directory of their own; a context manager, or ``start`` and ``stop``.

    They listen on unix sockets that only this user can reach, end when this process ends however it ends, and keep
    their data. ``postgres=False`` or ``redis=False`` leaves one out. ``durable=False`` is for throw-away data: it
    survives a crash of the servers, not of the machine.
    """

    def __init__(self, data_dir: Path, *, postgres: bool = True, redis: bool = True, durable: bool = True) -> None:
        self.data_dir = data_dir.resolve()
        self._cluster = self.data_dir / "postgres"
        self._with_postgres = postgres
        self._with_redis = redis
        self._durable = durable
        self._lock = DataDirectoryLock(self.data_dir)
        self._sockets: Path | None = None
        self._launcher: Launcher | None = None
        self._running: list[ServerProcess] = []

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL of the database ``modelmend``. Raises EmbeddedServersError while stopped."""
        host = quote(str(self._running_sockets()), safe="/")
        return f"postgresql+psycopg://{programs.USER}@/{programs.DATABASE}?host={host}&port={programs.PORT}"

    @property
    def redis_url(self) -> str:
        """URL of database 0. Raises EmbeddedServersError while stopped."""
        return f"unix://{quote(str(self._running_sockets() / 'redis.sock'), safe='/')}?db=0"

    def start(self) -> None:
        """Return when both servers answer and the database exists.

        Raises:
            DataDirectoryInUse: another process runs servers on this directory.
            EmbeddedNotInstalledError: the extra ``embedded`` is missing.
            ServerStartError: a server did not come up; holds the end of its log.
            EmbeddedServersError: not on Linux, or no private place for the sockets.
        """
        if self._launcher is not None:
            raise EmbeddedServersError(f"The servers on {self.data_dir} are already started.")
        if sys.platform != "linux":
            raise EmbeddedServersError(
                "The embedded servers need Linux. Set MODELMEND_DATABASE_URL and MODELMEND_REDIS_URL."
            )
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock.acquire(ORPHANS_TIMEOUT)
        try:
            self._start_locked()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shut both down cleanly, within a bound, and let the directory go; does nothing while stopped."""
        for server in self._running:
            server.ask_to_stop()
        for server in self._running:
            server.stop(STOP_TIMEOUT)
        self._running = []
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None
        if self._sockets is not None:
            discard(self._sockets)
            self._sockets = None
        self._lock.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_locked(self) -> None:
        assert self._lock.servers is not None  # noqa: S101 - acquired by the only caller
        deadline = time.monotonic() + START_TIMEOUT
        # PGPORT, PGDATA, PGOPTIONS and their like are about some other server.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        self._launcher = Launcher(environment, [self._lock.servers])
        sockets = self._sockets = make_socket_directory(self.data_dir)
        redis_server = self._launch_redis(self._launcher, sockets) if self._with_redis else None
        if self._with_postgres:
            postgres = self._launch_postgres(self._launcher, sockets)
            postgres.wait_until_ready(lambda: _postgres_is_ready(self._cluster), deadline)
            _create_database(sockets)
        if redis_server:
            redis_server.wait_until_ready(lambda: _redis_answers(sockets), deadline)

    def _launch_redis(self, launcher: Launcher, sockets: Path) -> ServerProcess:
        directory = self.data_dir / "redis"
        directory.mkdir(mode=0o700, exist_ok=True)
        settings = programs.REDIS_SETTINGS | {
            "dir": str(directory),
            "unixsocket": str(sockets / "redis.sock"),
        }
        arguments = [part for key, value in settings.items() for part in (f"--{key}", value)]
        log = self.data_dir / "redis.log"
        process = launcher.launch([programs.redis_program(), *arguments], log=log, death_signal=signal.SIGTERM)
        self._running.append(server := ServerProcess("Redis", process, log, signal.SIGTERM))
        return server

    def _launch_postgres(self, launcher: Launcher, sockets: Path) -> ServerProcess:
        if not self._cluster.exists():
            self._make_cluster(launcher)
        remove_dead_pid_file(self._cluster)
        settings = programs.POSTGRES_SETTINGS | {"unix_socket_directories": f'"{sockets}"'}
        if not self._durable:
            settings |= programs.POSTGRES_THROW_AWAY_SETTINGS
        arguments = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        log = self.data_dir / "postgres.log"
        process = launcher.launch(
            [programs.postgres_program(), "-D", self._cluster, "-p", str(programs.PORT), *arguments],
            log=log,
            death_signal=signal.SIGINT,  # Postgres' fast shutdown: ends sessions, writes everything
            disguised=_needs_disguise(),
        )
        self._running.append(server := ServerProcess("Postgres", process, log, signal.SIGINT))
        return server

    def _make_cluster(self, launcher: Launcher) -> None:
        # Made under another name: a kill in the middle leaves half a cluster that looks like a whole one.
        for left in self.data_dir.glob("postgres.new-*"):
            discard(left)
        fresh = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=self.data_dir))
        log = self.data_dir / "postgres.log"
        options = [*programs.INITDB_OPTIONS, *([] if self._durable else ["--no-sync"])]
        process = launcher.launch(
            [programs.initdb_program(), "--pgdata", fresh, *options],
            log=log,
            death_signal=signal.SIGKILL,
            disguised=_needs_disguise(),
        )
        initdb = ServerProcess("initdb", process, log, signal.SIGTERM)
        if not initdb.ended_within(START_TIMEOUT):
            initdb.stop(0)
            raise ServerStartError("initdb", "did not end in time", log)
        if process.returncode != 0:
            raise ServerStartError("initdb", f"ended with status {process.returncode}", log)
        fresh.rename(self._cluster)
        descriptor = os.open(self.data_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)  # initdb wrote the content through; its name must last as long
        finally:
            os.close(descriptor)

    def _running_sockets(self) -> Path:
        if self._sockets is None:
            raise EmbeddedServersError(f"The servers on {self.data_dir} are not started.")
        return self._sockets


def _needs_disguise() -> bool:
    """Postgres refuses root, and initdb a user id without a name."""
    if os.geteuid() == 0:
        return True
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return True
    return False


def _connect(sockets: Path) -> psycopg.Connection:
    return psycopg.connect(
        host=str(sockets),
        port=programs.PORT,
        user=programs.USER,
        dbname="postgres",
        connect_timeout=5,
        autocommit=True,
    )


def _postgres_is_ready(cluster: Path) -> bool:
    # As pg_ctl does; connecting instead would fill the log with refusals.
    try:
        lines = (cluster / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) > READY_LINE and lines[READY_LINE].strip() == "ready"


def _redis_answers(sockets: Path) -> bool:
    socket = str(sockets / "redis.sock")
    with redis.Redis(unix_socket_path=socket, socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
        try:
            return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):  # not there yet, or reading its file
            return False


def _create_database(sockets: Path) -> None:
    with _connect(sockets) as connection:
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [programs.DATABASE]).rowcount:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(programs.DATABASE)))


@dataclass(frozen=True)
class ServerURLs:
    """Where the database and the queue are: SQLAlchemy's and Redis' URL."""

    database_url: str
    redis_url: str


@contextmanager
def running_servers(
    database_url: str | None, redis_url: str | None, data_dir: Path, *, durable: bool = True
) -> Iterator[ServerURLs]:
    """The configured servers, and for each URL that is missing an embedded one on ``data_dir/servers``.

    Raises:
        EmbeddedServersError: one is missing and cannot be started.
    """
    if database_url and redis_url:
        yield ServerURLs(database_url, redis_url)
        return
    servers = EmbeddedServers(data_dir / "servers", postgres=not database_url, redis=not redis_url, durable=durable)
    with servers:
        yield ServerURLs(database_url or servers.database_url, redis_url or servers.redis_url)
