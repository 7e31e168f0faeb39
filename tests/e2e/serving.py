"""``modelmend serve`` as a process, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.client import Client
from app.serving import RunningRecord
from tests.waiting import wait_until

COMMAND = Path(sys.executable).with_name("modelmend")
START_SECONDS = 60.0  # generous: other tests may hold both cores


class Served:
    """A service in a directory of its own, and what it printed."""

    def __init__(self, directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.data_dir = directory / ".modelmend"
        self._output = directory / "serve.out"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MODELMEND_")}
        self.environment = clean | (environment or {})
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(
                [COMMAND, "serve", *(arguments or ("--port", "0"))],
                cwd=directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def output(self) -> str:
        return self._output.read_text()

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.output()
            return "Ctrl-C stops everything" in self.output()

        wait_until(ready, START_SECONDS, "the service is not ready")

    @property
    def record(self) -> RunningRecord:
        record = RunningRecord.read(self.data_dir)
        assert record
        return record

    @property
    def key(self) -> str:
        return (self.data_dir / "admin.key").read_text().strip()

    def client(self) -> Client:
        return Client(self.record.url, self.key)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command in the same directory."""
        return subprocess.run(
            [COMMAND, *arguments],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )

    def child(self, module: str) -> int:
        """Process id of ``python -m module``."""
        pid = wait_until(lambda: self._child(module), message=f"no process of {module}")
        assert pid
        return pid

    def _child(self, module: str) -> int | None:
        for pid in children_of(self.process.pid):
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except FileNotFoundError:
                continue
            if module.encode() in arguments:
                return pid
        return None

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(START_SECONDS)


@contextmanager
def served(directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Served]:
    """A service that answers, stopped afterwards."""
    service = Served(directory, *arguments, environment=environment)
    try:
        service.wait_until_ready()
        yield service
    finally:
        service.stop()


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            if task.name != str(pid)
            for child in (task / "children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def descendants_of(pid: int) -> list[int]:
    children = children_of(pid)
    return children + [below for child in children for below in descendants_of(child)]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
