from __future__ import annotations

import signal

from tests.worker.workshop import Workshop


def test_a_job_becomes_a_version_and_the_parent_never_imports_torch(workshop: Workshop) -> None:
    workshop.add_model("digits")
    worker = workshop.worker()
    job_id = workshop.ask_for_edit("digits")
    job = workshop.wait_for_state(job_id, "succeeded", "failed")
    assert (job.state, job.attempt, job.base_version, job.result_version) == ("succeeded", 1, 1, 2), workshop.logs()
    assert workshop.events(job_id) == ["accepted", "started", "stage", "stage", "stage", "succeeded"]
    assert workshop.ledger(job_id) == ["edit.accepted", "edit.started", "version.published", "edit.succeeded"]
    assert [version.number for version in workshop.versions("digits")] == [1, 2]
    worker.signal(signal.SIGTERM)
    assert worker.exit_status() == 0
    assert "torch in the parent: False" in worker.log()
