"""Workers that are asked to stop, by what service managers and terminals send."""

from __future__ import annotations

import signal

import pytest

from tests.worker.computations import calls
from tests.worker.workshop import Workshop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_stops_at_once(workshop: Workshop, number: signal.Signals) -> None:
    worker = workshop.worker()
    workshop.wait(worker.listens)
    worker.signal(number)
    assert worker.exit_status() == 0
    assert "Traceback" not in worker.log()


def test_a_stopping_worker_lets_its_job_finish_and_begins_no_other(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second = (workshop.ask_for_edit("digits") for _ in range(2))
    with workshop.held():
        worker = workshop.worker()
        workshop.wait(lambda: len(calls()) == 1)
        worker.signal(signal.SIGTERM)
    assert worker.exit_status() == 0
    assert (workshop.job(first).state, workshop.job(second).state) == ("succeeded", "queued")


def test_a_job_that_does_not_finish_in_time_is_handed_back_without_blame(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.ask_for_edit("digits")
    with workshop.held():
        worker = workshop.worker(drain_seconds=0.2)
        workshop.wait(lambda: len(calls()) == 1)
        worker.signal(signal.SIGTERM)
        assert worker.exit_status() == 0
        workshop.wait_until_gone(calls()[0]["pid"])
    job = workshop.job(job_id)
    assert (job.state, job.attempt, job.deaths, job.worker_id) == ("queued", 1, 0, None)
    workshop.worker()
    assert workshop.wait_for_state(job_id, "succeeded").attempt == 2


def test_a_second_signal_hands_the_job_back_now(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.ask_for_edit("digits")
    with workshop.held():
        worker = workshop.worker(drain_seconds=600.0)
        workshop.wait(lambda: len(calls()) == 1)
        worker.signal(signal.SIGINT)
        workshop.wait(lambda: "worker_drains" in worker.log())
        assert workshop.job(job_id).state == "running"
        worker.signal(signal.SIGTERM)
        assert worker.exit_status() == 0
    assert workshop.job(job_id).state == "queued"


def test_a_worker_that_cannot_compute_ends_and_blames_no_job(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.ask_for_edit("digits")
    worker = workshop.worker("there_is_no_such_function")
    assert worker.exit_status() == 1
    job = workshop.job(job_id)
    assert (job.state, job.deaths) == ("queued", 0)
    workshop.worker()
    workshop.wait_for_state(job_id, "succeeded")
