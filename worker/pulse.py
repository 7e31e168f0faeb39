"""Whether a worker can take jobs, told by the age of a file: ``python -m worker.pulse FILE`` looks.

Imports nothing but the standard library: a container's health check starts it every few seconds.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

BEAT_SECONDS = 1.0
MAX_AGE = 60.0  # seconds; an idle worker hears from Redis every 15


class Pulse:
    """A file that the worker's main thread touches; without a path, nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._next = 0.0

    def beat(self) -> None:
        """Redis answered just now, or the end of a computation is being waited for. Cheap: one touch a second."""
        if self._path is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + BEAT_SECONDS
            with suppress(OSError):  # whoever looks at the file will notice
                self._path.touch(mode=0o600)

    def end(self) -> None:
        """The worker takes no more jobs."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def main(path: Path) -> int:
    """Exit status: 0 for a beat within ``MAX_AGE``, otherwise 1 with a message."""
    try:
        age = time.time() - path.stat().st_mtime
    except OSError as error:
        sys.stderr.write(f"No worker touches {path}: {error.strerror}.\n")
        return 1
    if age > MAX_AGE:
        sys.stderr.write(f"The worker that touches {path} last did so {age:.0f} s ago.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
