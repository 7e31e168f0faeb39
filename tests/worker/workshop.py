"""A database with models and jobs, and real worker processes on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import select

from app.access.callers import Caller
from app.access.rules import Role
from app.artifacts import open_store
from app.database import make_engine, make_owner_engine, make_sessions
from app.datasets.snapshots import Snapshot, SnapshotChanges
from app.edits import line, outcomes, service
from app.edits.kinds import JobKind
from app.queueing import RqDoorbell
from app.settings import Settings
from app.tables import ApiKey, Dataset, Job, JobEvent, LedgerEntry, Model, Sample, Version
from tests.waiting import Found, wait_until

CONCEPTS = ["stroke", "loop", "corner"]
PROJECT = Path(__file__).parents[2]
START_SECONDS = 30.0  # generous: other tests may hold both cores


class WorkerProcess:
    """``python -m tests.worker.start`` in a session of its own, its log in a file."""

    def __init__(self, environment: dict[str, str], executor: str, log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.worker.start", f"tests.worker.computations.{executor}"],
                env=environment,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text()

    def listens(self) -> bool:
        """Whether it has come as far as to wait for rings."""
        return "listening" in self.log()

    def kill(self) -> None:
        """SIGKILL the parent alone."""
        self.process.kill()
        self.process.wait(10)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_status(self, timeout: float = START_SECONDS) -> int:
        return self.process.wait(timeout)


class Workshop:
    """Everything a test of the queue touches: rows, store, doorbell and workers."""

    def __init__(self, settings: Settings, stage: Path) -> None:
        assert settings.database_url
        assert settings.redis_url
        self.settings = settings
        self.stage = stage
        self.engine = make_engine(settings.database_url)
        self.owner = make_owner_engine(settings.database_url)  # sees and ends sessions, which the service may not
        self.sessions = make_sessions(self.engine)
        self.store = open_store(settings)
        self.doorbell = RqDoorbell(settings.redis_url, settings.queue_name)
        self._workers: list[WorkerProcess] = []
        with self.sessions.begin() as session:
            key = ApiKey(name="tests", role="admin", prefix="tests", secret_sha256="0" * 64)
            session.add(key)
            session.flush()
            self.key_id = key.id
        self._add_dataset()

    def close(self) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.kill()
        self.doorbell.close()
        self.engine.dispose()

    def worker(self, executor: str = "compute", **settings: Any) -> WorkerProcess:
        """Start a worker; ``settings`` differ from the workshop's."""
        chosen = self.settings.model_copy(update=settings).model_dump(mode="json")
        names = {f"MODELMEND_{name.upper()}": str(value) for name, value in chosen.items() if value is not None}
        environment = os.environ | names | {"MODELMEND_TEST_STAGE": str(self.stage)}
        worker = WorkerProcess(environment, executor, self.stage / f"worker-{len(self._workers)}.log")
        self._workers.append(worker)
        return worker

    def logs(self) -> str:
        """The logs of all workers, for a failing test."""
        return "\n".join(worker.log() for worker in self._workers)

    def add_model(self, model_id: str) -> str:
        """A model whose first version has no parent."""
        with self.sessions.begin() as session:
            dataset = session.get_one(Dataset, "glyphs")
            session.add(
                Model(
                    id=model_id,
                    title=model_id,
                    dataset_id=dataset.id,
                    architecture={"name": "small_conv"},
                    training={"seed": 7},
                    created_by=self.key_id,
                )
            )
            session.flush()
            job = line.join(
                session,
                model_id=model_id,
                dataset_id=dataset.id,
                kind=JobKind.TRAIN,
                request={},
                created_by=self.key_id,
            )
            job.state = "succeeded"
            session.add(
                Version(
                    model_id=model_id,
                    number=1,
                    job_id=job.id,
                    concepts=dataset.concepts,
                    classes=dataset.classes,
                    snapshot_digest=dataset.snapshot_digest,
                    weights_digest=self.store.put(b"weights"),
                    metrics={},
                    code_version="0",
                )
            )
            session.get_one(Model, model_id).latest_version = 1
        return model_id

    def queue_edit(
        self, model_id: str, *, priority: int = 0, base_version: int | None = None, kind: JobKind = JobKind.EDIT
    ) -> UUID:
        """Put an edit into the line without ringing."""
        request = {
            "operations": [
                {
                    "op": "fix_concept_labels",
                    "labels": [{"sample": "a", "concept": "stroke", "value": 1}],
                }
            ],
            "base_version": base_version,
        }
        with self.sessions.begin() as session:
            job = line.join(
                session,
                model_id=model_id,
                dataset_id="glyphs",
                kind=kind,
                request=request,
                created_by=self.key_id,
            )
            job.priority = priority
            return job.id

    def ask_for_edit(self, model_id: str, *, redis_url: str | None = None) -> UUID:
        """Queue an edit and ring, as the API does; over another Redis if one is named."""
        job_id = self.queue_edit(model_id)
        doorbell = self.doorbell if redis_url is None else RqDoorbell(redis_url, self.settings.queue_name)
        doorbell.ring(job_id)
        if doorbell is not self.doorbell:
            doorbell.close()
        return job_id

    def lend_row(self, job_id: UUID) -> int:
        """A row that the job adds, staged, with its image."""
        with self.sessions.begin() as session:
            row = Sample(
                dataset_id="glyphs",
                key="lent",
                split="train",
                class_index=0,
                concepts=[0, 0, 1],
                image_sha256="0" * 64,
                image_bytes=3,
                pending_job_id=job_id,
            )
            session.add(row)
            session.flush()
            self.store.put_images("glyphs", {row.id: b"png"})
            job = session.get_one(Job, job_id)
            operation = {"op": "add_samples", "samples": [{"key": "lent", "class": "one", "upload": "up-1"}]}
            job.request = {**job.request, "operations": [*job.request["operations"], operation]}
            return row.id

    def ask_for_restoration(self, model_id: str, number: int) -> UUID:
        """Queue the return to a version and ring; unlike the API, whatever stands against it by now."""
        with self.sessions.begin() as session:
            job_id = line.join(
                session,
                model_id=model_id,
                dataset_id="glyphs",
                kind=JobKind.RESTORE,
                request={"version": number, "base_version": None, "reason": None},
                created_by=self.key_id,
            ).id
        self.doorbell.ring(job_id)
        return job_id

    def publish_without_row(self, model_id: str, key: str) -> None:
        """The model's next version, whose data lacks one row."""
        with self.sessions.begin() as session:
            row = session.scalars(select(Sample.id).where(Sample.key == key)).one()
            model = session.get_one(Model, model_id)
            base = session.get_one(Version, (model_id, model.latest_version))
            snapshot = Snapshot.load(self.store.fetch(base.snapshot_digest)).apply(SnapshotChanges(removed=(row,)))
            job = line.join(
                session,
                model_id=model_id,
                dataset_id="glyphs",
                kind=JobKind.EDIT,
                request={},
                created_by=self.key_id,
            )
            job.state, job.attempt, job.base_version = "running", 1, base.number
            session.flush()
            new = outcomes.NewVersion(
                base.concepts, self.store.put(snapshot.to_bytes()), base.weights_digest, None, None, {}, "0"
            )
            outcomes.publish(session, job.id, 1, new=new, report={})

    def behave(self, behaviour: str) -> None:
        """What computations that begin from now on do: the name of a function in ``computations``."""
        (self.stage / "behaviour").write_text(behaviour)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Computations that begin in here wait until its end."""
        hold = self.stage / "hold"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def wait_until_gone(self, pid: int) -> None:
        """Wait for the end of a process that is not a child of ours."""

        def gone() -> bool:
            try:
                return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except FileNotFoundError:
                return True

        self.wait(gone, message=f"process {pid} lives")

    def cancel(self, job_id: UUID) -> None:
        """As the API does."""
        with self.sessions.begin() as session:
            job = session.get_one(Job, job_id, with_for_update=True)
            service.cancel(session, self.store, Caller(self.key_id, Role.ADMIN, None), job)

    def job(self, job_id: UUID) -> Job:
        with self.sessions() as session:
            return session.get_one(Job, job_id)

    def versions(self, model_id: str) -> Sequence[Version]:
        with self.sessions() as session:
            return session.scalars(select(Version).where(Version.model_id == model_id).order_by(Version.number)).all()

    def events(self, job_id: UUID) -> list[str]:
        with self.sessions() as session:
            return list(session.scalars(select(JobEvent.kind).where(JobEvent.job_id == job_id).order_by(JobEvent.id)))

    def ledger(self, job_id: UUID) -> list[str]:
        with self.sessions() as session:
            return list(
                session.scalars(select(LedgerEntry.kind).where(LedgerEntry.job_id == job_id).order_by(LedgerEntry.seq))
            )

    def wait_for_state(self, job_id: UUID, *states: str, timeout: float = START_SECONDS) -> Job:
        def reached() -> Job | None:
            job = self.job(job_id)
            return job if job.state in states else None

        job = self.wait(reached, timeout, f"the job is not {' or '.join(states)}")
        assert job
        return job

    def wait(self, predicate: Callable[[], Found], timeout: float = START_SECONDS, message: str = "not yet") -> Found:
        """``wait_until``, and the workers' logs when it does not come about."""
        try:
            return wait_until(predicate, timeout, message)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def _add_dataset(self) -> None:
        with self.sessions.begin() as session:
            rows = [("a", "train"), ("b", "train"), ("c", "calibration"), ("d", "test")]
            session.add(
                Dataset(
                    id="glyphs",
                    title="glyphs",
                    concepts=CONCEPTS,
                    classes=["one", "two"],
                    snapshot_digest="",
                    counts={},
                    created_by=self.key_id,
                )
            )
            session.flush()
            samples = [
                Sample(
                    dataset_id="glyphs",
                    key=key,
                    split=split,
                    class_index=0,
                    concepts=[0, 0, 1],
                    image_sha256="0" * 64,
                    image_bytes=1,
                )
                for key, split in rows
            ]
            session.add_all(samples)
            session.flush()
            snapshot = Snapshot(
                np.array([sample.id for sample in samples], np.int64),
                np.array([0, 0, 1, 2], np.int8),
                np.zeros(4, np.int32),
                np.array([[0, 0, 1]] * 4, np.int8),
            )
            session.get_one(Dataset, "glyphs").snapshot_digest = self.store.put(snapshot.to_bytes())
