"""One server process: launched so that it ends with us, waited for, stopped within a bound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from app.embedded import launch
from app.embedded.errors import EmbeddedServersError

LOG_TAIL_LINES = 15


class ServerStartError(EmbeddedServersError):
    """A server ended, or did not answer in time; holds the last lines of its log."""

    def __init__(self, name: str, what: str, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        super().__init__("\n".join((f"{name} {what}. The end of {log}:", *lines)))


class Launcher:
    """Starts programs from one thread that lives as long as they should.

    The kernel signals a child when the *thread* that forked it ends, so servers started by a passing thread would
    end with it.
    """

    def __init__(self, environment: Mapping[str, str], inherit: Sequence[int]) -> None:
        self._environment = dict(environment)
        self._inherit = inherit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedded-servers")

    def launch(
        self, command: Sequence[str | Path], *, log: Path, death_signal: signal.Signals, disguised: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start ``command``, output appended to ``log``; it gets ``death_signal`` when this process is gone."""

        def fork() -> subprocess.Popen[bytes]:
            prefix = [sys.executable, "-I", "-S", launch.__file__]
            facts = [str(os.getpid()), str(int(death_signal)), str(int(disguised))]
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                return subprocess.Popen(  # noqa: S603 - our own programs and paths
                    [*prefix, *facts, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=descriptor,
                    env=self._environment,
                    pass_fds=self._inherit,
                    start_new_session=True,  # the terminal's Ctrl-C is for us; we stop the servers after our own work
                )
            finally:
                os.close(descriptor)

        return self._thread.submit(fork).result()

    def close(self) -> None:
        """End the thread: whatever still runs gets its death signal."""
        self._thread.shutdown()


class ServerProcess:
    """A launched server."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, stop_signal: signal.Signals) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._stop_signal = stop_signal

    def wait_until_ready(self, answers: Callable[[], bool], deadline: float) -> None:
        """Return once ``answers()``; ``deadline`` is on the monotonic clock.

        Raises:
            ServerStartError: the server ended or did not answer in time.
        """
        while not answers():
            if self.ended_within(0.01):
                raise ServerStartError(self._name, f"ended with status {self._process.returncode}", self._log)
            if time.monotonic() > deadline:
                raise ServerStartError(self._name, "did not answer in time", self._log)

    def ask_to_stop(self) -> None:
        """Send the signal for a clean, fast shutdown."""
        self._process.send_signal(self._stop_signal)

    def stop(self, timeout: float) -> None:
        """Wait ``timeout`` seconds for the end that was asked for, then kill. Data survives either."""
        if not self.ended_within(timeout):
            self._process.kill()
            self._process.wait()

    def ended_within(self, seconds: float) -> bool:
        """Whether the process has ended, waiting up to ``seconds`` for it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
