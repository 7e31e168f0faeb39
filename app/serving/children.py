"""Processes of ours that shall live as long as this one: started, watched, started again, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from app.embedded.processes import Launcher

SHORT_LIFE = 60.0  # seconds; who lived longer is started again at once
LONGEST_PAUSE = 30.0
WATCH_SECONDS = 0.2
LOG_TAIL_LINES = 15


class Child:
    """One such process. The kernel kills it when this process is gone, however that happened."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        grace: float,
        inherit: Sequence[int] = (),
    ) -> None:
        """Args: ``grace`` is how long it may take to end after SIGTERM; then it is told once more, then killed."""
        self.name = name
        self.log = log
        self._command = list(command)
        self._grace = grace
        self._launcher = Launcher(environment, inherit)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._short_lives = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, or a successor."""
        self._process = self._launcher.launch(self._command, log=self.log, death_signal=signal.SIGKILL)
        self._started_at = time.monotonic()

    def ended(self) -> str | None:
        """How it ended, in words; None while it lives."""
        status = None if self._process is None else self._process.poll()
        if status is None:
            return None
        return f"was killed by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"

    def pause_before_restart(self) -> float:
        """Seconds to wait before the next start, called once after each end: longer after each short life."""
        if time.monotonic() - self._started_at > SHORT_LIFE:
            self._short_lives = 0
        self._short_lives += 1
        return 0.0 if self._short_lives == 1 else min(2.0 ** (self._short_lives - 2), LONGEST_PAUSE)

    def log_tail(self) -> str:
        """The last lines it wrote."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        if self._process is not None:
            self._process.terminate()

    def stop(self, hurry: threading.Event) -> None:
        """Return when it has ended, after being asked to; at the latest after twice its grace, or at once when
        ``hurry`` is set."""
        if self._process is not None:
            if not self._ends_within(self._grace, hurry):
                self._process.terminate()
            if not self._ends_within(self._grace, hurry):
                self._process.kill()
            self._process.wait()
            self._process = None
        self._launcher.close()

    def _ends_within(self, seconds: float, hurry: threading.Event) -> bool:
        assert self._process is not None  # noqa: S101 - asked by the only caller
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            if hurry.wait(0.02) or time.monotonic() > deadline:
                return False
        return True


class Supervisor:
    """Watches children in a thread of its own, tells of each end, and starts a successor."""

    def __init__(self, children: Sequence[Child], tell: Callable[[str], None]) -> None:
        self._children = children
        self._tell = tell
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No child is started any more when this returns."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        due: dict[str, float] = {}
        while not self._stopping.wait(WATCH_SECONDS):
            for child in self._children:
                if child.name in due:
                    if time.monotonic() >= due[child.name]:
                        del due[child.name]
                        child.start()
                elif (end := child.ended()) is not None:
                    pause = child.pause_before_restart()
                    due[child.name] = time.monotonic() + pause
                    when = f"in {pause:g} s" if pause else "now"
                    self._tell(f"The {child.name} {end}. Another one starts {when}. Its log is {child.log}.")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def inherited_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Our environment with ``settings`` (by field name) in place of every ``MODELMEND_`` variable; None is unset."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("MODELMEND_")}
    return kept | {f"MODELMEND_{name.upper()}": str(value) for name, value in settings.items() if value is not None}
