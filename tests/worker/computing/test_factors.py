"""Factors of a version: fitted once, taken up where a process died, and not for ever."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.computing.dying import BATCH, fit_until
from tests.worker.computing.scene import TOLERANT, World, version
from worker.compute import execute
from worker.computing import factors
from worker.computing.factors import REFRESH_AFTER, memory
from worker.curvature import fitting
from worker.tasks import Task

START_SECONDS = 60.0  # generous: other tests may hold both cores


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written after each."""
    monkeypatch.setattr(factors, "BATCH_SIZE", BATCH)
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", 0.0)


def kill_in(world: World, task: Task, phase: int, times: int) -> None:
    """Run a fit in another process, and kill it there."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    store = world.scene.store
    root = str(getattr(store, "root"))  # noqa: B009 - a local one, which the protocol does not promise
    process = context.Process(target=fit_until, args=(root, task.to_json(), phase, times, theirs), daemon=True)
    process.start()
    try:
        assert ours.poll(START_SECONDS), "the fit did not come so far"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL


class BrokenOffError(Exception):
    """The test's own interruption."""


def break_off(world: World, task: Task, batches: int) -> None:
    """The same within this process, in the first pass."""
    told: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        told.append(stage)
        if told.count("fitting") == batches:
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        execute(task, world.scene.store, "cpu", progress)


def batches_told(world: World, since: int) -> list[int]:
    """Progress told of both passes."""
    told = [done for stage, done, _ in world.scene.reports[since:] if stage == "fitting"]
    return [told.count(phase) for phase in (0, 2)]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("phase", "times", "left"), [(0, 2, [2, 4]), (2, 3, [0, 1])], ids=["first pass", "second pass"]
)
def test_a_killed_fit_goes_on_to_the_same_factors(own_world: World, phase: int, times: int, left: list[int]) -> None:
    """Nothing that was summed before the kill is summed again, and the result is the same file."""
    scene = own_world.scene
    task = scene.task("fit_factors", base=version(own_world.trained))
    whole = scene.run(task)
    assert batches_told(own_world, 0) == [4, 4]
    work = Path(scene.store.work_folder("fit")).parent
    assert list(work.iterdir()) == [], "a fit that is done leaves nothing"
    kill_in(own_world, task, phase, times)
    (folder,) = work.iterdir()
    assert any(folder.iterdir())
    since = len(scene.reports)
    resumed = scene.run(task)
    assert batches_told(own_world, since) == left
    assert resumed.factors_digest == whole.factors_digest
    assert list(work.iterdir()) == []


@pytest.mark.usefixtures("small_batches")
def test_what_is_damaged_is_fitted_from_the_start(own_world: World) -> None:
    scene = own_world.scene
    task = scene.task("fit_factors", base=version(own_world.trained))
    whole = scene.run(task)
    break_off(own_world, task, 3)
    (folder,) = Path(scene.store.work_folder("fit")).parent.iterdir()
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    since = len(scene.reports)
    assert scene.run(task).factors_digest == whole.factors_digest
    assert batches_told(own_world, since) == [4, 4]
    assert not folder.exists()


@pytest.mark.usefixtures("small_batches")
def test_a_fit_of_another_seed_is_another_fit(own_world: World) -> None:
    scene = own_world.scene
    base = version(own_world.trained)
    break_off(own_world, scene.task("fit_factors", base=base), 2)
    since = len(scene.reports)
    scene.run(scene.task("fit_factors", base=base, seed=5))
    assert batches_told(own_world, since) == [4, 4]


def test_little_memory_fits_in_parts(own_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same factors up to the order of additions; how many parts shows in the passes over the rows."""
    scene = own_world.scene
    task = scene.task("fit_factors", base=version(own_world.trained))
    monkeypatch.setattr(factors, "memory", lambda device: 4 * 100_000)
    since = len(scene.reports)
    divided = scene.run(task)
    first, second = batches_told(own_world, since)
    assert first > 1
    assert second > 1
    assert divided.report["manifest"] == own_world.fitted.report["manifest"]


def test_memory_is_what_the_machine_has() -> None:
    """A gibibyte at least, or nothing here would run; and not all that an address can name."""
    assert 1 << 30 <= memory("cpu") < 1 << 48


class TestAge:
    def test_factors_serve_until_they_are_too_old(self, world: World) -> None:
        """At the age given, they are fitted anew on the base version; the child inherits those."""
        nearly = replace(world.base, number=7, factors_age=REFRESH_AFTER - 1)
        report = world.scene.edit(nearly, world.changes("fix"), **TOLERANT).report
        assert report["factors"] == {
            "fitted_here": False,
            "version": 1,
            "age": REFRESH_AFTER - 1,
            "refreshed": False,
        }
        result = world.scene.edit(replace(nearly, factors_age=REFRESH_AFTER), world.changes("fix"), **TOLERANT)
        assert result.report["factors"] == {"fitted_here": True, "version": 7, "age": 0, "refreshed": True}
        assert result.factors_version == 7
        assert result.factors_digest == world.fitted.factors_digest, "of the same weights and rows"

    def test_a_preview_of_such_an_edit_leaves_the_new_ones_to_the_version(self, world: World) -> None:
        old = replace(world.base, number=7, factors_age=REFRESH_AFTER)
        task = world.scene.task("preview", base=old, changes=world.changes("fix").to_json(), options=TOLERANT)
        result = world.scene.run(task)
        assert result.report["factors"]["refreshed"]
        assert (result.factors_digest, result.factors_version) == (world.fitted.factors_digest, 7)
