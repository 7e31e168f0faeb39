"""What the demo shows while it runs: one line and one bar for each job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from app.client import Job

TITLE_WIDTH = 36
BAR_WIDTH = 16


class JobLine:
    """One line: a title, the stage of a job with its bar, and in the end what came of it."""

    def __init__(self, title: str, console: Console, progress: Progress, task: TaskID) -> None:
        self._title = title
        self._console = console
        self._progress = progress
        self._task = task
        self._started_at = time.monotonic()
        self._finished = False

    def show(self, job: Job) -> None:
        """A reading of the job."""
        done, total = job.progress.done, job.progress.total
        stage = "waits for a worker" if job.state == "queued" else (job.stage or job.state).replace("_", " ")
        counts = f" {done}/{total}" if total > 1 else ""
        self._progress.update(self._task, completed=done, total=total or None, said=stage + counts)

    def finish(self, outcome: str, *, failed: bool = False) -> None:
        """The last word about it; a later one is not shown."""
        if self._finished:
            return
        self._finished = True
        mark = "[red]✗" if failed else "[green]✓"
        self._progress.update(self._task, said=outcome, mark=mark)
        self._progress.stop_task(self._task)
        if not self._console.is_terminal:
            line = f"{mark}[/] {self._title} ({time.monotonic() - self._started_at:.1f} s): {outcome}"
            self._console.print(line, highlight=False, soft_wrap=True)


class Display:
    """All lines, live on a terminal; elsewhere each is printed when it is finished."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            _MarkColumn(table_column=Column(width=1)),
            TextColumn("{task.description}", table_column=Column(width=TITLE_WIDTH, no_wrap=True)),
            _SecondsColumn(table_column=Column(width=7, justify="right")),
            _StageColumn(table_column=Column(no_wrap=True)),
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
        task = self._progress.add_task(title, total=None, said="", mark="")
        line = JobLine(title, self.console, self._progress, task)
        try:
            yield line
        except BaseException:
            line.finish("stopped", failed=True)
            raise


class _MarkColumn(SpinnerColumn):
    def render(self, task: Task) -> RenderableType:
        return Text.from_markup(task.fields["mark"]) if task.fields["mark"] else super().render(task)


class _SecondsColumn(ProgressColumn):
    def render(self, task: Task) -> RenderableType:
        return Text("" if task.elapsed is None else f"{task.elapsed:.1f} s", style="dim")


class _StageColumn(ProgressColumn):
    """While a job runs, a bar of its stage; then what came of it."""

    def render(self, task: Task) -> RenderableType:
        said = Text(task.fields["said"], overflow="ellipsis", no_wrap=True)
        if task.fields["mark"]:
            return said
        bar = ProgressBar(
            total=task.total,
            completed=task.completed,
            width=BAR_WIDTH,
            pulse=task.total is None,
            animation_time=task.get_time(),
        )
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, said)
        return row
