"""Ctrl-C and what service managers send."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered, in the main thread: the first signal raises KeyboardInterrupt, so that everything is ended in
    order; later ones do not disturb that and set ``hurry``."""

    def __init__(self) -> None:
        self.hurry = threading.Event()
        self.requested = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in _NUMBERS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # as signal.signal returned it

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            self.hurry.set()
            return
        self.requested = True
        raise KeyboardInterrupt
