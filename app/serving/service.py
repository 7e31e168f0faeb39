"""Everything a running service consists of, as one context."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.embedded import running_servers
from app.migrate import upgrade
from app.serving.children import Child, Supervisor, inherited_environment
from app.serving.errors import ServingError
from app.serving.first_key import ensure_admin_key
from app.serving.running import RunningRecord
from app.settings import Settings

API_COMMAND = (sys.executable, "-P", "-m", "app.serving.api")
WORKER_COMMAND = (sys.executable, "-P", "-m", "worker")
API_START_TIMEOUT = 60.0
API_GRACE = 3.0  # a little more than it gives its requests
WORKER_GRACE = 2.0  # a job that needs longer is handed back and goes on at the next start
BACKLOG = 1024
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound here


@dataclass(frozen=True)
class RunningService:
    """What its user needs to know. ``new_key`` is the first administrator's key when it was made just now."""

    url: str
    data_dir: Path
    logs: Path
    new_key: str | None
    api: Child
    worker: Child


@contextmanager
def running_service(
    settings: Settings,
    *,
    durable: bool = True,
    tell: Callable[[str], None],
    hurry: threading.Event | None = None,
    worker_command: Sequence[str] = WORKER_COMMAND,
) -> Iterator[RunningService]:
    """Servers (embedded unless configured), the newest schema, a first key, the API and one worker.

    Entered when the API answers; the worker may still be busy starting. On leaving, API, worker and servers end in
    that order, within seconds.

    Args:
        durable: False for data that need not survive a crash of the machine.
        tell: gets a sentence for people about each step, and about each process that died.
        hurry: set while leaving, it has whatever still runs killed.

    Raises:
        ServingError: the port is taken, or the API does not start.
        EmbeddedServersError: the servers do not start.
    """
    settings = settings.model_copy(update={"data_dir": settings.data_dir.resolve()})
    data_dir = settings.data_dir
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(settings.host, settings.port))
        _make_private(data_dir, logs := data_dir / "logs")
        tell("Starting Postgres and Redis")
        urls = stack.enter_context(
            running_servers(settings.database_url, settings.redis_url, data_dir, durable=durable)
        )
        tell("Bringing the database to the newest schema")
        upgrade(urls.database_url)
        new_key = ensure_admin_key(urls.database_url, data_dir)
        port = listener.getsockname()[1]
        given = {"database_url": urls.database_url, "redis_url": urls.redis_url, "port": port}
        environment = inherited_environment(settings.model_dump(mode="json") | given)
        api = Child(
            "API",
            [*API_COMMAND, str(listener.fileno())],
            environment=environment,
            log=logs / "api.log",
            grace=API_GRACE,
            inherit=[listener.fileno()],
        )
        worker = Child("worker", worker_command, environment=environment, log=logs / "worker.log", grace=WORKER_GRACE)
        supervisor = Supervisor([api, worker], tell)
        stack.callback(_stop, [api, worker], supervisor, hurry or threading.Event(), tell)
        tell("Starting the API and a worker")
        worker.start()
        api.start()
        url = _address(settings.host, port)
        _wait_until_ready(api, url)
        supervisor.start()
        RunningRecord(pid=os.getpid(), url=url, **vars(urls)).write(data_dir)
        stack.callback(RunningRecord.remove, data_dir)
        yield RunningService(url, data_dir, logs, new_key, api, worker)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket, before anything else is started; it stays bound while an API process is replaced."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ServingError(_cannot_listen(host, port, error)) from error
    with listener:
        yield listener


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is in use. Stop the program that uses it, or choose another port with --port "
            "(0 takes a free one)."
        )
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"Port {port} of {host} is not allowed to this user. Choose a port above 1023 with --port."
    reason = error.strerror if error.errno is None or error.errno < 0 else os.strerror(error.errno)
    return f"Cannot listen on {host}: {reason}. Choose an address of this machine with --host."


def _make_private(*directories: Path) -> None:
    for directory in directories:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ServingError(
                f"{directory} cannot be made a directory ({error.strerror}). Choose another one with --data."
            ) from error


def _wait_until_ready(api: Child, url: str) -> None:
    deadline = time.monotonic() + API_START_TIMEOUT
    with httpx.Client(transport=httpx.HTTPTransport(), timeout=1.0) as client:
        while True:
            if (end := api.ended()) is not None:
                raise ServingError(f"The API {end}. The end of {api.log}:\n{api.log_tail()}")
            try:
                if client.get(f"{url}/readyz").is_success:
                    return
            except httpx.TransportError:
                pass  # not yet
            if time.monotonic() > deadline:
                raise ServingError(f"The API did not answer in time. The end of {api.log}:\n{api.log_tail()}")
            time.sleep(0.02)


def _stop(
    children: Sequence[Child], supervisor: Supervisor, hurry: threading.Event, tell: Callable[[str], None]
) -> None:
    tell("Stopping; a running job goes on at the next start")
    supervisor.stop()
    for child in children:
        child.ask_to_stop()
    for child in children:
        child.stop(hurry)


def _address(host: str, port: int) -> str:
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
