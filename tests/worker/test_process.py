from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from app.artifacts import open_store
from app.settings import Settings
from tests.waiting import wait_until
from tests.worker.computations import calls, stage
from worker.process import ComputeProcess, Crashed, Died, Failed, Finished, Message, Progress, Ready
from worker.tasks import Task

TASK = Task(
    kind="train",
    model_id="digits",
    dataset_id="glyphs",
    architecture={},
    training={},
    concepts=["loop"],
    classes=["one"],
    snapshot_digest="0" * 64,
    seed=0,
)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("MODELMEND_TEST_STAGE", str(tmp_path))
    return Settings(data_dir=tmp_path, device="cpu")


@pytest.fixture
def process(settings: Settings) -> Iterator[ComputeProcess]:
    process = ComputeProcess(settings, "tests.worker.computations.compute")
    yield process
    process.kill()


def messages(process: ComputeProcess) -> list[Message]:
    """All messages up to the end of a task or of the process."""
    seen: list[Message] = []
    while not seen or isinstance(seen[-1], Ready | Progress):
        message = process.next_message(30.0)
        assert message is not None, f"nothing after {seen}"
        seen.append(message)
        if process.ready and message == Ready():
            return seen
    return seen


def run(process: ComputeProcess, behaviour: str) -> list[Message]:
    process.ensure_started()
    if not process.ready:
        assert messages(process) == [Ready()]
    (stage() / "behaviour").write_text(behaviour)
    process.submit(TASK, uuid4())
    return messages(process)


def test_one_process_answers_task_after_task(process: ComputeProcess, settings: Settings) -> None:
    first = run(process, "succeed")
    assert first[:-1] == [Progress("loading", 0, 1), Progress("solving", 1, 2), Progress("solving", 2, 2)]
    (end,) = first[-1:]
    assert isinstance(end, Finished)
    assert end.result.weights_digest
    assert open_store(settings).fetch(end.result.weights_digest).exists()
    assert run(process, "fail") == [Failed("tolerance_exceeded", "label F1 fell by 0.05, allowed are 0.02")]
    assert run(process, "crash") == [Crashed("OSError")]
    assert run(process, "not_a_number")[-1] == Crashed("ValueError")
    run(process, "succeed")
    assert {call["pid"] for call in calls()} == {process.pid}


def test_one_that_died_is_told_and_replaced(process: ComputeProcess) -> None:
    assert run(process, "segfault") == [Died(-signal.SIGSEGV)]
    assert isinstance(run(process, "succeed")[-1], Finished)


def test_killing_leaves_nothing_and_may_be_repeated(process: ComputeProcess) -> None:
    process.ensure_started()
    assert messages(process) == [Ready()]
    pid = process.pid
    assert pid
    process.kill()
    process.kill()
    assert not Path(f"/proc/{pid}").exists()
    assert process.next_message(0) == Died(None)


def test_one_that_was_killed_while_idle_takes_a_task_and_is_told_dead(process: ComputeProcess) -> None:
    process.ensure_started()
    assert messages(process) == [Ready()]
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    process.submit(TASK, uuid4())
    assert messages(process) == [Died(-signal.SIGKILL)]


def test_signals_for_the_whole_group_do_not_end_a_computation(process: ComputeProcess) -> None:
    """A terminal's Ctrl-C and a service manager's SIGTERM reach the compute process too; its parent decides."""
    process.ensure_started()
    assert messages(process) == [Ready()]
    assert process.pid
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process.pid, number)
    assert isinstance(run(process, "succeed")[-1], Finished)


def test_one_that_cannot_start_dies_before_it_is_ready(settings: Settings) -> None:
    process = ComputeProcess(settings, "tests.worker.computations.there_is_no_such_function")
    process.ensure_started()
    assert messages(process) == [Died(1)]
    assert not process.ready
    process.kill()
