"""What the demo shows while it runs: one line and one bar for each job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column

from app.client import Job

TITLE_WIDTH = 44


class JobLine:
    """One line: a title, the stage of a job with its bar, and in the end what came of it."""

    def __init__(self, title: str, console: Console, progress: Progress, task: TaskID) -> None:
        self._title = title
        self._console = console
        self._progress = progress
        self._task = task
        self._started_at = time.monotonic()

    def show(self, job: Job) -> None:
        """A reading of the job."""
        done, total = job.progress.done, job.progress.total
        counts = f" {done}/{total}" if total > 1 else ""
        stage = (
            "waits for a worker" if job.state == "queued" else f"{(job.stage or job.state).replace('_', ' ')}{counts}"
        )
        self._progress.update(self._task, completed=done, total=total or None, stage=stage)

    def finish(self, outcome: str, *, failed: bool = False) -> None:
        """The last word about it."""
        mark = "[red]✗" if failed else "[green]✓"
        seconds = f"{time.monotonic() - self._started_at:.1f} s"
        self._progress.update(self._task, completed=1, total=1, stage=f"{outcome} [dim]{seconds}", mark=mark)
        if not self._console.is_terminal:
            self._console.print(f"{mark}[/] {self._title}: {outcome} ({seconds})", highlight=False)


class Display:
    """All lines, live on a terminal; elsewhere each is printed when it is finished."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="{task.fields[mark]}"),
            TextColumn("{task.fields[mark]}", table_column=Column(width=1)),
            TextColumn("{task.description}", table_column=Column(width=TITLE_WIDTH, no_wrap=True)),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[stage]}", table_column=Column(no_wrap=True)),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @contextmanager
    def line(self, title: str) -> Iterator[JobLine]:
        """A line that is in work until its ``finish``; an exception in between is shown as a failure."""
        task = self._progress.add_task(title, total=None, stage="", mark="")
        line = JobLine(title, self.console, self._progress, task)
        try:
            yield line
        except BaseException:
            line.finish("stopped", failed=True)
            raise
