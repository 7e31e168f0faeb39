"""Real workers on real servers: how jobs run when nothing goes wrong."""

from __future__ import annotations

import json
import signal

import redis
from sqlalchemy import delete, select

from app.edits.kinds import JobKind
from app.tables import Job, Sample
from tests.worker.computations import calls
from tests.worker.workshop import Workshop


def test_a_job_becomes_a_version_and_the_parent_never_imports_torch(workshop: Workshop) -> None:
    workshop.add_model("digits")
    worker = workshop.worker()
    job_id = workshop.ask_for_edit("digits")
    job = workshop.wait_for_state(job_id, "succeeded", "failed")
    assert (job.state, job.attempt, job.base_version, job.result_version) == ("succeeded", 1, 1, 2), job.error
    assert job.report == {"device": "cpu"}
    assert workshop.events(job_id) == ["accepted", "started", "stage", "stage", "stage", "succeeded"]
    assert workshop.ledger(job_id) == ["edit.accepted", "edit.started", "version.published", "edit.succeeded"]
    assert [version.number for version in workshop.versions("digits")] == [1, 2]
    worker.signal(signal.SIGTERM)
    assert worker.exit_status() == 0
    assert "torch in the parent: False" in worker.log()


def test_two_workers_keep_fifty_edits_of_one_model_in_order(workshop: Workshop) -> None:
    workshop.add_model("digits")
    jobs = [workshop.queue_edit("digits") for _ in range(50)]
    workers = [workshop.worker(sweep_seconds=60.0) for _ in range(2)]
    workshop.wait(lambda: all(worker.listens() for worker in workers))
    for job_id in jobs:
        workshop.doorbell.ring(job_id)
    workshop.wait_for_state(jobs[-1], "succeeded", "failed", timeout=60)
    with workshop.sessions() as session:
        rows = session.execute(
            select(Job.id, Job.state, Job.base_version, Job.result_version, Job.attempt).order_by(Job.seq)
        )
        ran = [tuple(row) for row in rows][1:]  # without the one that made version 1
    assert ran == [(job_id, "succeeded", number, number + 1, 1) for number, job_id in enumerate(jobs, 1)]
    assert [version.job_id for version in workshop.versions("digits")][1:] == jobs
    assert [call["base"] for call in calls()] == list(range(1, 51))
    assert len({call["pid"] for call in calls()}) == 2, "one of the workers did nothing"


def test_two_models_are_edited_at_the_same_time_by_two_workers(workshop: Workshop) -> None:
    jobs = {model: workshop.ask_for_edit(workshop.add_model(model)) for model in ("digits", "letters")}
    with workshop.held():
        for _ in jobs:
            workshop.worker()
        workshop.wait(lambda: len(calls()) == 2)
        assert {call["model"] for call in calls()} == set(jobs)
        assert {workshop.job(job_id).state for job_id in jobs.values()} == {"running"}
    for job_id in jobs.values():
        workshop.wait_for_state(job_id, "succeeded")


def test_failures_crashes_and_impossible_results_end_a_job_and_not_the_next(workshop: Workshop) -> None:
    workshop.add_model("digits")
    worker = workshop.worker()

    def run(behaviour: str) -> Job:
        workshop.behave(behaviour)
        return workshop.wait_for_state(workshop.ask_for_edit("digits"), "succeeded", "failed")

    assert run("fail").error == {"code": "tolerance_exceeded", "detail": "label F1 fell by 0.05, allowed are 0.02"}
    crashed = run("crash")
    assert crashed.error == {"code": "internal_error", "detail": "The computation stopped unexpectedly (OSError)."}
    (line,) = [line for line in worker.log().splitlines() if "computation_crashed" in line]
    assert json.loads(line)["job"] == str(crashed.id)
    assert json.loads(line)["at"][-1].endswith(" crash")
    assert "No space left" not in worker.log(), "messages of exceptions may hold what is in the data"
    assert run("not_a_number").error == {
        "code": "internal_error",
        "detail": "The computation stopped unexpectedly (ValueError).",
    }
    edited = run("succeed")
    assert (edited.base_version, edited.result_version) == (1, 2)


def test_a_request_that_no_longer_applies_fails_without_computing(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second = (workshop.queue_edit("digits", base_version=1) for _ in range(2))
    workshop.worker()
    assert workshop.wait_for_state(second, "failed", "succeeded").error == {
        "code": "base_version_changed",
        "detail": "The edit asked for version 1; version 2 is the newest by now.",
    }
    assert workshop.job(first).state == "succeeded"
    assert len(calls()) == 1


def test_a_queued_job_is_cancelled_and_passed_over(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second, third = (workshop.ask_for_edit("digits") for _ in range(3))
    with workshop.held():
        workshop.worker()
        workshop.wait(lambda: len(calls()) == 1)
        workshop.cancel(second)
        assert workshop.job(second).state == "cancelled"
    workshop.wait_for_state(third, "succeeded")
    assert workshop.job(first).state == "succeeded"
    assert workshop.job(second).state == "cancelled"
    assert [version.job_id for version in workshop.versions("digits")][1:] == [first, third]


def test_a_running_job_is_cancelled_within_about_a_second_and_its_computation_killed(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second = (workshop.ask_for_edit("digits") for _ in range(2))
    with workshop.held():
        workshop.worker(heartbeat_seconds=60.0, lease_seconds=600.0)  # a renewal is not what makes it look
        workshop.wait(lambda: len(calls()) == 1)
        workshop.cancel(first)
        # LOOK_SECONDS + LISTEN_SECONDS = 0.6 s, and what other processes take of two cores.
        workshop.wait_for_state(first, "cancelled", timeout=3.0)
        workshop.wait_until_gone(calls()[0]["pid"])
    workshop.wait_for_state(second, "succeeded")
    assert workshop.ledger(first) == ["edit.accepted", "edit.started", "edit.cancelled"]
    assert [version.job_id for version in workshop.versions("digits")][1:] == [second]
    assert calls()[1]["pid"] != calls()[0]["pid"]


def test_a_preview_takes_its_turn_and_makes_no_version(workshop: Workshop) -> None:
    """What it was lent goes, and the edit behind it starts from the version that it was computed on."""
    workshop.add_model("digits")
    preview = workshop.queue_edit("digits", kind=JobKind.PREVIEW)
    row = workshop.lend_row(preview)
    edit = workshop.queue_edit("digits")
    workshop.worker()
    workshop.doorbell.ring(preview)
    job = workshop.wait_for_state(edit, "succeeded", "failed")
    assert (job.state, job.base_version, job.result_version) == ("succeeded", 1, 2), job.error
    seen = workshop.job(preview)
    assert (seen.state, seen.base_version, seen.result_version) == ("succeeded", 1, None), seen.error
    assert workshop.ledger(preview) == ["preview.accepted", "preview.started", "preview.succeeded"]
    assert [version.job_id for version in workshop.versions("digits")][1:] == [edit]
    with workshop.sessions() as session:
        assert session.get(Sample, row) is None
    assert not workshop.store.image_path("glyphs", row).exists()


def test_an_edit_is_undone_and_another_follows(workshop: Workshop) -> None:
    """Over a real worker, whose computation of the restoration is the real one."""
    workshop.add_model("digits")
    workshop.worker()
    workshop.wait_for_state(workshop.ask_for_edit("digits"), "succeeded")
    workshop.behave("computed")
    undo = workshop.ask_for_restoration("digits", 1)
    job = workshop.wait_for_state(undo, "succeeded", "failed")
    assert (job.state, job.base_version, job.result_version) == ("succeeded", 2, 3), job.error
    refused = workshop.wait_for_state(workshop.ask_for_restoration("digits", 3), "succeeded", "failed")
    assert refused.error == {"code": "version_is_newest", "detail": "Version 3 is the newest."}
    workshop.behave("succeed")
    workshop.wait_for_state(workshop.ask_for_edit("digits"), "succeeded")
    first, second, third, fourth = workshop.versions("digits")
    assert [version.parent for version in (first, second, third, fourth)] == [None, 1, 1, 3]
    assert third.weights_digest == first.weights_digest != second.weights_digest
    assert third.snapshot_digest == first.snapshot_digest
    assert workshop.ledger(undo) == [
        "restoration.accepted",
        "restoration.started",
        "version.published",
        "restoration.succeeded",
    ]


def test_what_is_erased_while_a_restoration_waits_is_not_restored(workshop: Workshop) -> None:
    workshop.add_model("digits")
    workshop.publish_without_row("digits", "b")
    with workshop.held():
        workshop.worker()
        workshop.ask_for_edit("digits")
        workshop.wait(lambda: len(calls()) == 1)
        undo = workshop.ask_for_restoration("digits", 1)
        with workshop.sessions.begin() as session:
            session.execute(delete(Sample).where(Sample.key == "b"))
    job = workshop.wait_for_state(undo, "succeeded", "failed")
    assert job.error is not None
    assert job.error["code"] == "version_holds_erased_data"


def test_messages_that_are_no_rings_are_dropped(workshop: Workshop) -> None:
    """Whoever can write to Redis can waste a worker's time, not have it run a function of their choice."""
    from rq import Queue
    from rq.serializers import JSONSerializer

    workshop.add_model("digits")
    assert workshop.settings.redis_url
    with redis.Redis.from_url(workshop.settings.redis_url) as connection:
        queue = Queue(workshop.settings.queue_name, connection=connection, serializer=JSONSerializer)
        queue.enqueue_call("os.mkdir", args=(str(workshop.stage / "made"),))
        queue.enqueue_call("worker.jobs.run_job", args=("not an id",))
    worker = workshop.worker()
    workshop.wait_for_state(workshop.ask_for_edit("digits"), "succeeded")
    assert not (workshop.stage / "made").exists()
    assert "ring_not_understood" in worker.log()
    assert "ring_not_answered" in worker.log()
