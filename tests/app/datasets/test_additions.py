from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session

from app.access.rules import Role
from app.datasets import repository
from app.datasets.additions import NewSample
from app.datasets.service import (
    discard_added_samples,
    remove_orphans,
    settle_added_samples,
    stage_added_samples,
)
from app.datasets.snapshots import AddedSample
from app.edits.kinds import JobKind
from app.kit.problems import Problem
from app.tables import ApiKey, Dataset, Job, Sample, Subject, Upload
from tests.app.artifacts.files import files_holding
from tests.app.datasets.images import encoded
from tests.app.datasets.submissions import register, state
from tests.app.service import Service
from tests.builders import build_job, build_model


@dataclass(frozen=True)
class Stage:
    """A registered data set with a model, jobs to add rows for, and images waiting."""

    service: Service
    images: list[bytes]
    uploads: list[str]
    jobs: list[UUID]

    def items(self, count: int = 2, **changed: Any) -> list[NewSample]:
        items: list[Any] = [
            {
                "key": f"new-{number}",
                "class": "box",
                "concepts": {"round": 1},
                "split": "train",
                "subject": f"patient {number}",
                "upload": self.uploads[number],
                **changed,
            }
            for number in range(count)
        ]
        return items

    def add(self, items: list[NewSample], job: int = 0) -> list[AddedSample]:
        with self.service.sessions.begin() as session:
            dataset = session.get_one(Dataset, "shapes")
            return stage_added_samples(session, self.service.store, dataset, items, self.jobs[job])

    def refusal(self, items: list[NewSample]) -> tuple[str, list[dict[str, Any]]]:
        before = state(self.service)
        with pytest.raises(Problem) as caught:
            self.add(items)
        assert state(self.service) == before
        return caught.value.type.code, caught.value.errors  # type: ignore[return-value]


def upload(service: Service, images: list[bytes], **arguments: Any) -> list[str]:
    files = [("files", (f"{number}.png", data)) for number, data in enumerate(images)]
    answer = service.post("/uploads?kind=image", files=files, **arguments)
    return [found["id"] for found in answer.json()["uploads"]]


@pytest.fixture
def stage(service: Service) -> Stage:
    register(service)
    images = [encoded(seed) for seed in range(100, 105)]
    uploads = upload(service, images)
    with service.sessions.begin() as session:
        model = build_model(session, session.get_one(Dataset, "shapes"))
        jobs = [build_job(session, model, JobKind.EDIT).id for _ in range(2)]
    return Stage(service, images, uploads, jobs)


def pending(session: Session) -> list[str]:
    return list(session.scalars(select(Sample.key).where(Sample.pending_job_id.is_not(None)).order_by(Sample.id)))


def test_added_rows_have_their_images_and_use_up_the_uploads(stage: Stage) -> None:
    service = stage.service
    added = stage.add(stage.items())
    assert [(row.split, row.class_index, row.concepts) for row in added] == [(0, 1, (1, -1))] * 2
    with service.sessions() as session:
        rows = session.scalars(select(Sample).where(Sample.pending_job_id == stage.jobs[0]).order_by(Sample.id)).all()
        assert [(row.id, row.key, row.concepts) for row in rows] == [
            (added[0].sample_id, "new-0", [1, None]),
            (added[1].sample_id, "new-1", [1, None]),
        ]
        assert set(session.scalars(select(Upload.id))) == set(stage.uploads[2:])
    for row, image in zip(added, stage.images, strict=False):
        path = service.store.image_path("shapes", row.sample_id)
        assert files_holding(service.services.settings.data_dir, image) == [path]


def test_waiting_rows_are_not_shown_and_settled_ones_are(stage: Stage) -> None:
    stage.add(stage.items(1))
    assert stage.service.get("/datasets/shapes/samples/new-0").status_code == 404
    with stage.service.sessions.begin() as session:
        settle_added_samples(session, stage.jobs[1])
        assert pending(session) == ["new-0"]
        settle_added_samples(session, stage.jobs[0])
    assert stage.service.get("/datasets/shapes/samples/new-0").json()["concepts"] == {"round": 1, "dark, very": None}
    assert stage.service.get("/datasets/shapes/samples/new-0/image").content == stage.images[0]


def test_discarded_rows_leave_neither_bytes_nor_subjects(stage: Stage) -> None:
    service = stage.service
    stage.add(stage.items(1, subject="patient 0"))
    stage.add([{**stage.items(2)[1], "subject": "somebody new"}])
    stage.add([{**stage.items(3)[2], "subject": "somebody else"}], job=1)
    with service.sessions.begin() as session:
        assert discard_added_samples(session, service.store, stage.jobs[0]) == 2
    with service.sessions() as session:
        assert pending(session) == ["new-2"]
        references = set(session.scalars(select(Subject.reference)))
    assert references == {"patient 0", "patient 1", "somebody else"}
    folder = service.services.settings.data_dir
    assert [len(files_holding(folder, image)) for image in stage.images[:3]] == [0, 0, 1]


def test_discarding_that_is_rolled_back_keeps_rows_and_images(stage: Stage) -> None:
    service = stage.service
    (added,) = stage.add(stage.items(1))
    with service.sessions() as session:
        discard_added_samples(session, service.store, stage.jobs[0])
        session.rollback()
    assert service.store.image_path("shapes", added.sample_id).read_bytes() == stage.images[0]
    with service.sessions() as session:
        assert pending(session) == ["new-0"]


def test_staging_that_is_rolled_back_leaves_the_uploads(stage: Stage) -> None:
    service = stage.service
    before = state(service)
    with service.sessions() as session:
        dataset = session.get_one(Dataset, "shapes")
        stage_added_samples(session, service.store, dataset, stage.items(), stage.jobs[0])
        assert len(state(service)["files"]) == len(before["files"]) + 2
        session.rollback()
    assert state(service) == before


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"key": "a/b"}, "invalid_key"),
        ({"class": "cone"}, "unknown_class"),
        ({"concepts": {"tall": 1}}, "unknown_concept"),
        ({"concepts": {"round": 2}}, "label_not_0_1_unknown"),
        ({"split": "validation"}, "unknown_split"),
        ({"subject": " x"}, "invalid_subject"),
    ],
)
def test_names_that_mean_nothing_are_refused(stage: Stage, changed: dict[str, Any], code: str) -> None:
    assert stage.refusal(stage.items(1, **changed)) == ("invalid_request", [{"item": 0, "code": code}])


def test_keys_that_are_taken_are_refused(stage: Stage) -> None:
    assert stage.refusal(stage.items(2, key="img-0")) == (
        "sample_exists",
        [{"item": 0, "code": "sample_exists"}, {"item": 1, "code": "sample_exists"}],
    )
    assert stage.refusal(stage.items(2, key="twice")) == ("sample_exists", [{"item": 1, "code": "sample_exists"}])
    stage.add(stage.items(1), job=1)
    assert stage.refusal([{**stage.items(2)[1], "key": "new-0"}])[0] == "sample_exists"


def test_uploads_that_cannot_be_used_are_refused(stage: Stage) -> None:
    service = stage.service
    foreign = upload(service, [encoded(200)], key=service.key_of(Role.CLIENT))[0]
    with service.sessions.begin() as session:
        past = datetime.now(UTC) - timedelta(seconds=1)
        session.execute(update(Upload).where(Upload.id == stage.uploads[0]).values(expires_at=past))
        session.execute(update(Upload).where(Upload.id == stage.uploads[1]).values(kind="weights"))
    good = stage.uploads[2]
    names = ["up-0000000000000000000000", foreign, stage.uploads[0], stage.uploads[1], good, good]
    items = [item for number, name in enumerate(names) for item in stage.items(1, key=f"k-{number}", upload=name)]
    assert stage.refusal(items) == (
        "unknown_upload",
        [{"item": number, "code": "unknown_upload"} for number in (0, 1, 2, 3, 5)],
    )


def test_an_upload_is_used_once_by_two_at_the_same_time(stage: Stage) -> None:
    def add(job: int) -> str:
        try:
            stage.add(stage.items(1, key=f"new-{job}"), job=job)
        except Problem as problem:
            return problem.type.code
        return "added"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(add, [0, 1])) == ["added", "unknown_upload"]


def test_one_key_is_added_once_by_two_at_the_same_time(stage: Stage) -> None:
    def add(job: int) -> str:
        try:
            stage.add(stage.items(1, key="same", upload=stage.uploads[job]), job=job)
        except Problem as problem:
            return problem.type.code
        return "added"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(add, [0, 1])) == ["added", "sample_exists"]
    with stage.service.sessions() as session:
        rows = session.scalars(select(Sample.id)).all()
    # Images of rows, the snapshot, and the uploads that were not used.
    assert len(state(stage.service)["files"]) == len(rows) + 1 + 4


def test_many_subjects_are_made_in_two_statements(service: Service) -> None:
    statements: list[str] = []
    with service.sessions.begin() as session:
        repository.upsert_subjects(session, ["person 3"])
        event.listen(
            service.services.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
        )
        made = repository.upsert_subjects(session, [f"person {number}" for number in range(1000)])
    assert (len(made), len(set(made.values()))) == (1000, 1000)
    assert len(statements) == 2


def test_subjects_made_by_two_in_opposite_orders_do_not_wait_for_each_other(service: Service) -> None:
    names = [f"person {number}" for number in range(50)]
    barrier = threading.Barrier(2)

    def make(order: list[str]) -> dict[str, UUID]:
        with service.sessions.begin() as session:
            barrier.wait(10)
            return repository.upsert_subjects(session, order)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(make, [names, names[::-1]])
    assert first == second
    assert set(first) == set(names)


def test_a_subject_in_use_by_an_open_transaction_is_not_deleted(service: Service) -> None:
    with service.sessions.begin() as session:
        subject_id = repository.upsert_subjects(session, ["somebody"])["somebody"]
    with service.sessions() as using, service.sessions.begin() as deleting:
        assert repository.upsert_subjects(using, ["somebody"]) == {"somebody": subject_id}
        repository.delete_subjects_without_rows(deleting, [subject_id])
    with service.sessions.begin() as session:
        assert session.get(Subject, subject_id) is not None
        repository.delete_subjects_without_rows(session, [subject_id])
    with service.sessions() as session:
        assert session.get(Subject, subject_id) is None


def test_images_without_a_row_are_found_and_removed_once_old(stage: Stage) -> None:
    """What a process that died between writing and committing leaves."""
    service = stage.service
    before = state(service)
    service.store.put_images("shapes", {10**6: b"orphan"})
    service.store.put_images("never-committed", {10**6 + 1: b"orphan"})
    with service.sessions() as session:
        assert remove_orphans(session, service.store, datetime.now(UTC) - timedelta(hours=1)) == 0
        assert remove_orphans(session, service.store, datetime.now(UTC) + timedelta(seconds=10)) == 2
    assert state(service) == before


def test_the_job_s_creator_decides_whose_uploads_are_used(stage: Stage) -> None:
    with stage.service.sessions() as session:
        owner = session.get_one(ApiKey, session.get_one(Job, stage.jobs[0]).created_by)
        assert set(session.scalars(select(Upload.created_by))) == {owner.id}
