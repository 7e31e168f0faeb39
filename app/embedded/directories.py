"""Who owns a data directory, and where its sockets are."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from app.embedded.errors import EmbeddedServersError
from app.embedded.programs import PORT

MAX_SOCKET_PATH = 107  # bytes in sockaddr_un.sun_path, without the closing zero
LONGEST_SOCKET_NAME = f".s.PGSQL.{PORT}.lock"


class DataDirectoryInUse(EmbeddedServersError):
    """Another living process runs servers on this data directory."""

    def __init__(self, directory: Path, holder: str) -> None:
        super().__init__(
            f"{directory} is in use by process {holder}. Stop that process first, or choose another directory with "
            "MODELMEND_DATA_DIR."
        )
        self.directory = directory


class DataDirectoryLock:
    """Two locks on a data directory.

    ``owner.lock`` is held by the process that starts the servers and tells a second one at once to go away.
    ``servers.lock`` is an open file that every server process inherits, down to Postgres' backends: when it can be
    had, none of them is left, whatever became of their process ids. Zombies hold no files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._owner: int | None = None
        self.servers: int | None = None

    def acquire(self, timeout: float) -> None:
        """Take both locks; wait up to ``timeout`` seconds for servers that a killed owner left shutting down.

        Raises:
            DataDirectoryInUse: another process is the owner.
            EmbeddedServersError: old servers have not ended in time.
        """
        try:
            self._owner = _open(self.directory / "owner.lock")
            self._become_owner(self._owner)
            self.servers = _open(self.directory / "servers.lock")
            self._outwait_servers(self.servers, timeout)
        except BaseException:
            self.release()
            raise

    def _become_owner(self, descriptor: int) -> None:
        if not _try_lock(descriptor):
            raise DataDirectoryInUse(self.directory, os.pread(descriptor, 20, 0).decode() or "(just starting)")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def _outwait_servers(self, descriptor: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise EmbeddedServersError(
                    f"Servers of an earlier run still use {self.directory} after {timeout:.0f} s. "
                    "End its postgres and redis-server processes, then try again."
                )
            time.sleep(0.01)

    def release(self) -> None:
        """Let both go."""
        for descriptor in (self.servers, self._owner):
            if descriptor is not None:
                os.close(descriptor)
        self._owner = self.servers = None


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_socket_directory(data_directory: Path) -> Path:
    """An empty directory that only we can enter, with a path short enough for sockets, the same for the same data.

    The caller holds the data directory's lock, so what an earlier run left in it is removed.

    Raises:
        EmbeddedServersError: someone else could enter or replace the directory.
    """
    digest = hashlib.sha256(os.fsencode(data_directory)).hexdigest()[:12]
    name = f"modelmend-{os.geteuid()}-{digest}"
    # Not XDG_RUNTIME_DIR: it is removed at logout, under a server that was left running.
    base = Path(tempfile.gettempdir()).resolve()
    if len(os.fsencode(base / name / LONGEST_SOCKET_NAME)) > MAX_SOCKET_PATH:
        base = Path("/tmp")  # noqa: S108 - sticky and checked below
    _refuse_replaceable(base)
    directory = base / name
    directory.mkdir(mode=0o700, exist_ok=True)
    facts = directory.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise EmbeddedServersError(
            f"{directory} is not a private directory of ours. Remove it, or set TMPDIR to a directory of your own."
        )
    for left in directory.iterdir():
        left.unlink()
    return directory


def _refuse_replaceable(base: Path) -> None:
    facts = base.stat()
    others_write = facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX
    if others_write or facts.st_uid not in (0, os.geteuid()):
        raise EmbeddedServersError(
            f"Others can rename what is in {base}. Set TMPDIR to a directory of your own for the servers' sockets."
        )


def remove_dead_pid_file(cluster: Path) -> None:
    """Remove ``postmaster.pid`` of a postmaster that no longer runs.

    Postgres itself takes a zombie, or a stranger who got the same process id after a reboot, for its living
    predecessor and refuses to start.
    """
    pid_file = cluster / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().partition("\n")[0])
        alive = Path(f"/proc/{pid}/cwd").readlink() == cluster  # a postmaster stands in its data directory
    except (OSError, ValueError):
        alive = False
    if not alive:
        pid_file.unlink(missing_ok=True)


def discard(directory: Path) -> None:
    """Remove a directory whatever is in it; what is gone already is fine."""
    shutil.rmtree(directory, ignore_errors=True)
