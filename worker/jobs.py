"""One ring, answered: claim the head of a line, have it computed, write down how it ended, ring for the next."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from uuid import UUID

import structlog
from sqlalchemy import Engine, select
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from app.artifacts import ArtifactMissing, ArtifactStore
from app.edits import outcomes
from app.queueing import Doorbell
from app.settings import Settings
from app.tables import Job
from worker.claim import Claim, claim_next
from worker.lease import Lease
from worker.logs import log_unexpected
from worker.process import ComputeProcess, Crashed, Died, Failed, Finished, Progress
from worker.pulse import Pulse
from worker.release import give_up_dead, hand_back, lock_held
from worker.resolution import task_for
from worker.stop import Stop
from worker.tasks import Result, Task, TaskFailure

LISTEN_SECONDS = 0.1  # how late the end of a lease, a cancellation or a stop may be noticed
RETRY_SECONDS = 0.5
NOT_ANSWERING = (InterfaceError, InternalError, OperationalError)  # lost, silent for too long, or waiting for a lock
UNEXPECTED = "internal_error"
CODE_VERSION = version("modelmend")

log = structlog.get_logger(__name__)


class ComputeUnavailable(RuntimeError):
    """The compute process died before it was ready: no job is to blame, and none can run here."""


@dataclass(frozen=True)
class Cancelled:
    """A client asked for the end; the computation was killed."""


@dataclass(frozen=True)
class Stopped:
    """This worker ends before the job could; the computation was killed."""


@dataclass(frozen=True)
class Unable:
    """The compute process ended by itself before it was ready: no job is to blame."""


@dataclass(frozen=True)
class Lost:
    """The job is not ours any more, or its lease ran out while Postgres did not answer; the computation was killed."""


End = Finished | Failed | Crashed | Died | Cancelled | Stopped | Unable | Lost


@dataclass(frozen=True)
class Worker:
    """What answering a ring needs."""

    settings: Settings
    worker_id: str
    lease_engine: Engine
    sessions: sessionmaker[Session]
    store: ArtifactStore
    doorbell: Doorbell
    process: ComputeProcess
    stop: Stop
    pulse: Pulse


def run_job(worker: Worker, rung_for: UUID) -> None:
    """Run the head of the line of ``rung_for``'s model to an end, unless the line is empty or busy.

    Called in the main thread, one at a time.

    Raises:
        ComputeUnavailable: the job was handed back; end the worker.
    """
    if worker.stop.requested:
        worker.doorbell.ring(rung_for)  # for somebody else
        return
    settings = worker.settings
    claim = claim_next(
        worker.sessions, rung_for=rung_for, worker_id=worker.worker_id, lease_seconds=settings.lease_seconds
    )
    if claim is None:
        return
    with structlog.contextvars.bound_contextvars(
        job=str(claim.job_id), model=claim.job.model_id, attempt=claim.attempt
    ):
        log.info("job_started", kind=claim.job.kind, base_version=claim.job.base_version)
        try:
            end, held = _run_claimed(worker, claim)
        except BaseException:
            worker.process.kill()  # whatever it still computes must not be taken for the next job's result
            raise
        log.info("job_ended", end=type(end).__name__, held=held, seconds=round(time.monotonic() - claim.claimed_at, 3))
    ring_next(worker, claim.job.model_id)
    if isinstance(end, Unable):
        raise ComputeUnavailable("the compute process ended before it was ready; its own output says why")
    if not worker.stop.requested:
        worker.process.ensure_started()  # one that was killed is back before the next job needs it


def _run_claimed(worker: Worker, claim: Claim) -> tuple[End, bool]:
    settings = worker.settings
    with Lease(
        worker.lease_engine,
        claim,
        lease_seconds=settings.lease_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
    ) as lease:
        end = _compute(worker, claim, lease)
        return end, _settle(worker, claim, lease, end)


def ring_next(worker: Worker, model_id: str) -> None:
    """Ring for the head of a model's line, if there is one."""
    try:
        with worker.sessions.begin() as session:
            waiting = session.scalars(
                select(Job.id)
                .where(Job.model_id == model_id, Job.state == "queued")
                .order_by(Job.priority.desc(), Job.seq)
                .limit(1)
            ).one_or_none()
    except SQLAlchemyError as error:
        log.warning("next_job_not_rung", model=model_id, error=type(error).__name__)
        return
    if waiting is not None:
        worker.doorbell.ring(waiting)


def _compute(worker: Worker, claim: Claim, lease: Lease) -> End:
    """Have the task computed; kill the computation as soon as it must not go on."""
    worker.process.ensure_started()
    task = _resolve(worker, claim, lease)
    if not isinstance(task, Task):
        return task
    end = _watch(worker, claim, lease, task)
    if not isinstance(end, Finished | Failed):
        worker.process.kill()
    return end


def _resolve(worker: Worker, claim: Claim, lease: Lease) -> Task | End:
    while not lease.lost:
        try:
            with worker.sessions.begin() as session:
                return task_for(session, worker.store, claim.job)
        except TaskFailure as failure:
            return Failed(failure.code, failure.detail)
        except NOT_ANSWERING as error:
            _pause_after(error)
        except (SQLAlchemyError, ArtifactMissing, ValueError) as error:
            log_unexpected("job_not_resolved", error)
            return Crashed(type(error).__name__)
    return Lost()


def _watch(worker: Worker, claim: Claim, lease: Lease, task: Task) -> End:
    process, submitted, draining = worker.process, False, False
    while True:
        worker.pulse.beat()
        if lease.lost:
            return Lost()
        if lease.cancel_requested:
            return Cancelled()
        if worker.stop.now:
            return Stopped()
        if worker.stop.requested and not draining:
            draining = True
            log.info("worker_drains")
        if process.ready and not submitted:
            process.submit(task, claim.job_id)
            submitted = True
        match process.next_message(LISTEN_SECONDS):
            case Progress() as progress:
                lease.report(progress)
            case Died(exitcode) if not submitted and exitcode is not None and exitcode > 0:  # no signal: it gave up
                return Unable()
            case Finished() | Failed() | Crashed() | Died() as end:
                return end


def _settle(worker: Worker, claim: Claim, lease: Lease, end: End) -> bool:
    """Write down how the attempt ended. While Postgres does not answer, try as long as the lease holds.

    Returns:
        Whether the job was still ours.
    """
    if isinstance(end, Finished):
        lease.report(Progress("publishing", 0, 1))
    lease.flush()
    while not isinstance(end, Lost):
        try:
            with worker.sessions.begin() as session:
                return _write_end(session, worker, claim, end)
        except NOT_ANSWERING as error:
            if lease.lost:
                break
            _pause_after(error)
        except SQLAlchemyError as error:
            if not isinstance(end, Finished):
                raise
            log_unexpected("result_not_published", error)
            end = Crashed(type(error).__name__)
    return False


def _write_end(session: Session, worker: Worker, claim: Claim, end: End) -> bool:
    store, job = worker.store, claim.job
    match end:
        case Finished(result):
            return publish_result(session, store, claim, result)
        case Failed(code, detail):
            return outcomes.fail(session, store, job.id, job.attempt, code=code, detail=detail)
        case Crashed(error):
            detail = f"The computation stopped unexpectedly ({error})."
            return outcomes.fail(session, store, job.id, job.attempt, code=UNEXPECTED, detail=detail)
        case Cancelled():
            return outcomes.confirm_cancelled(session, store, job.id, job.attempt)
    return _give_up(session, worker, job, end)


def _give_up(session: Session, worker: Worker, job: Job, end: End) -> bool:
    held = lock_held(session, job)
    if held is None:
        return False
    if isinstance(end, Died):
        log.warning("computation_died", exitcode=end.exitcode)
        limit = worker.settings.max_attempts
        return give_up_dead(session, worker.store, held, cause="computation_died", max_deaths=limit)
    return hand_back(session, worker.store, held)


def publish_result(session: Session, store: ArtifactStore, claim: Claim, result: Result) -> bool:
    """Write down what a computation made; whether the job was still the claim's."""
    if not result.publishes:
        return outcomes.finish_without_version(
            session, store, claim.job_id, claim.attempt, report=result.report, factors_digest=result.factors_digest
        )
    if result.snapshot_digest is None or result.weights_digest is None:
        raise ValueError("a result that publishes a version needs a snapshot and weights")
    new = outcomes.NewVersion(
        concepts=result.concepts,
        snapshot_digest=result.snapshot_digest,
        weights_digest=result.weights_digest,
        factors_digest=result.factors_digest,
        factors_version=result.factors_version,
        metrics=result.metrics,
        code_version=CODE_VERSION,
    )
    return outcomes.publish(session, claim.job_id, claim.attempt, new=new, report=result.report)


def _pause_after(error: SQLAlchemyError) -> None:
    log.warning("database_not_answering", error=type(error).__name__)
    threading.Event().wait(RETRY_SECONDS)
