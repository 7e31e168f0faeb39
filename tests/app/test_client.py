"""The client against the real application, and against connections that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.access.routes import ApiKeyBody
from app.client import (
    Client,
    Job,
    JobFailed,
    LabelFix,
    NewSample,
    ProblemError,
    ServiceUnreachable,
    WaitTimeout,
    add_samples,
    connection,
    drop_concepts,
    fix_concept_labels,
    remove_samples,
    resources,
)
from app.datasets.schemas import DatasetBody, RegisteredDatasetBody, SampleBody
from app.demo.digits import archive, definition, load, manifest
from app.edits import outcomes
from app.edits.bodies import EditCheck, JobBody
from app.ledger.entries import LedgerEntryBody
from app.registry.schemas import AliasBody, ModelBody, VersionBody
from app.tables import Job as JobRow
from app.tables import Model as ModelRow
from app.uploads.schemas import UploadBody
from tests.app.service import Service
from tests.builders import build_key, build_ready_model, build_version

MODEL = "digits-model"


class InProcess(httpx.BaseTransport):
    """Requests go to the application without a socket, through whichever HTTP library Starlette's client uses."""

    def __init__(self, service: Service) -> None:
        self._client = service.client

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._client.request(
            request.method,
            str(request.url),
            content=request.read(),
            headers=dict(request.headers),
            follow_redirects=False,
        )
        return httpx.Response(answer.status_code, headers=answer.headers.multi_items(), content=answer.content)


def client_of(service: Service, key: str | None = None) -> Client:
    """A client whose requests go to the application without a socket."""
    return Client("http://testserver", key or service.key, transport=InProcess(service))


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0], subjects=["s-0"])
    with client_of(service) as client:
        yield client


def start(service: Service, job: Job) -> None:
    """As a worker's claim would."""

    def running(session: Session) -> None:
        row = session.get_one(JobRow, job.id)
        row.state, row.attempt, row.stage, row.done, row.total = "running", 1, "solving", 2, 6

    with service.sessions.begin() as session:
        running(session)


def end(service: Service, job: Job, *, code: str | None = None) -> None:
    with service.sessions.begin() as session:
        if code is None:
            assert outcomes.finish_without_version(
                session, service.store, job.id, 1, report={"seconds": 1.5}, factors_digest=None
            )
        else:
            assert outcomes.fail(session, service.store, job.id, 1, code=code, detail="label F1 fell by 0.05")


def test_a_data_set_is_registered_and_read(client: Client, tmp_path: Path) -> None:
    rows = list(load().rows[:270])
    (tmp_path / "images.zip").write_bytes(archive(rows))
    registered = client.register_dataset(definition("strokes"), manifest(rows), tmp_path / "images.zip")
    assert (registered.id, sum(registered.counts.values()), registered.unreferenced_images) == ("strokes", 270, 0)
    assert client.dataset("strokes") == resources.Dataset(**registered.model_dump(exclude={"unreferenced_images"}))
    assert [dataset.id for dataset in client.datasets()] == ["digits", "strokes"]
    assert [sample.key for sample in client.samples("strokes")] == [row.key for row in rows], "two pages"
    sevens = [row.key for row in rows if (row.split, row.digit) == ("train", "7")]
    assert [sample.key for sample in client.samples("strokes", split="train", class_name="7")] == sevens
    sample = client.sample("strokes", rows[0].key)
    assert (sample.class_, sample.concepts, sample.subject) == (rows[0].digit, rows[0].concepts, rows[0].subject)
    assert client.image("strokes", rows[0].key) == rows[0].png


def test_images_may_be_a_directory_of_files(client: Client, tmp_path: Path) -> None:
    rows = load().rows[:30]
    files = []
    for row in rows:
        (tmp_path / row.image).write_bytes(row.png)
        files.append(tmp_path / row.image)
    assert sum(client.register_dataset(definition("strokes"), manifest(rows), files).counts.values()) == 30


def test_models_versions_and_aliases(client: Client) -> None:
    job = client.create_model("young", "digits", {"name": "small_conv", "width": 8}, training={"epochs": 2})
    assert (job.kind, job.state, job.model, job.request["training"]["epochs"]) == ("train", "queued", "young", 2)
    assert [model.id for model in client.models()] == [MODEL, "young"]
    assert client.model("young").latest_version is None
    version = client.version(MODEL, 1)
    assert [version] == list(client.versions(MODEL))
    assert client.weights(MODEL, 1) == b"weights digits-model 1"
    alias = client.set_alias(MODEL, "production", 1)
    assert client.aliases(MODEL) == [alias]
    assert client.model(MODEL).aliases == {"production": 1}
    weights = b"\x02\x00\x00\x00\x00\x00\x00\x00{}"
    (upload,) = client.upload("weights", {"w.safetensors": weights})
    registration = client.create_model("old", "digits", {"name": "resnet18"}, weights=upload.id, title="Old one")
    assert (registration.kind, client.model("old").title) == ("register", "Old one")
    (upload,) = client.upload("weights", {"resnet18.safetensors": weights})
    training = client.create_model("warm", "digits", {"name": "resnet18"}, pretrained=upload.id)
    assert training.kind == "train"
    assert client.model("warm").architecture["pretrained_sha256"] == upload.sha256


def test_edits_of_every_kind_are_checked_queued_and_cancelled(client: Client) -> None:
    row = load().rows[0]
    (upload,) = client.upload("image", {row.image: row.png})
    operations = [
        fix_concept_labels([LabelFix("img-1", "closed loop", 1), LabelFix("img-2", "closed loop", None)]),
        drop_concepts(["crossing"]),
        remove_samples(["img-5"], subjects=["s-0"]),
        add_samples([NewSample("new-1", "1", upload.id, {"closed loop": 0}, subject="s-1")]),
    ]
    counts = client.check_edit(MODEL, operations, base_version=1).counts
    assert (counts["samples_removed"], counts["samples_added"], counts["concepts_dropped"]) == (2, 1, 1)
    assert list(client.edits(MODEL)) == []
    edit = client.edit(MODEL, operations, base_version=1, reason="audit", options={"method": "closed_form"})
    assert edit.request["options"]["method"] == "closed_form"
    assert edit.path == f"/models/{MODEL}/edits/{edit.id}"
    assert client.cancel(edit).state == "cancelled"
    assert [job.id for job in client.edits(MODEL, state="cancelled")] == [edit.id]
    assert client.job(MODEL, str(edit.id)).state == "cancelled"
    kinds = [entry.kind for entry in client.ledger(MODEL)]
    assert kinds[:2] == ["edit.cancelled", "edit.accepted"]
    assert [entry.kind for entry in client.ledger(MODEL, kind="edit.accepted")] == ["edit.accepted"]


def test_factors_and_retrainings(client: Client) -> None:
    assert client.fit_factors(MODEL).kind == "fit_factors"
    retraining = client.retrain(MODEL, version=1, seed=3, repeats=2)
    assert retraining.request == {"version": 1, "seed": 3, "repeats": 2}
    assert [job.kind for job in client.jobs(MODEL, state="queued")] == ["retrain", "fit_factors"]
    assert [job.id for job in client.jobs(MODEL, kind="retrain")] == [retraining.id]


def test_edits_are_previewed(client: Client, service: Service) -> None:
    preview = client.preview(MODEL, [remove_samples(["img-1"])], base_version=1, options={"evidence": "none"})
    assert (preview.kind, preview.state, preview.request["options"]["evidence"]) == ("preview", "queued", "none")
    assert preview.path == f"/models/{MODEL}/previews/{preview.id}"
    assert list(client.previews(MODEL)) == [preview]
    assert list(client.previews(MODEL, state="running")) == list(client.edits(MODEL)) == []
    start(service, preview)
    end(service, preview)
    assert client.wait(preview).state == "succeeded"
    assert client.cancel(client.preview(MODEL, [remove_samples(["img-1"])])).state == "cancelled"


def test_older_versions_are_restored(client: Client, service: Service) -> None:
    with pytest.raises(ProblemError) as refusal:
        client.restore(MODEL, 1)
    assert (refusal.value.status, refusal.value.code) == (409, "version_is_newest")
    with service.sessions.begin() as session:
        build_version(session, service.store, session.get_one(ModelRow, MODEL))
    job = client.restore(MODEL, 1, reason="undo", idempotency_key="undo-june")
    assert (job.kind, job.request["version"], job.request["reason"]) == ("restore", 1, "undo")
    assert client.restore(MODEL, 1, reason="undo", idempotency_key="undo-june").id == job.id
    assert client.job(MODEL, str(job.id)) == job


def test_an_etag_binds_edits_previews_and_restorations_to_what_was_read(client: Client, service: Service) -> None:
    old = client.model(MODEL).etag
    with service.sessions.begin() as session:
        build_version(session, service.store, session.get_one(ModelRow, MODEL))
    new, operations = client.model(MODEL).etag, [remove_samples(["img-1"])]
    queueing: list[Callable[[str], Job]] = [
        lambda etag: client.edit(MODEL, operations, if_match=etag),
        lambda etag: client.preview(MODEL, operations, if_match=etag),
        lambda etag: client.restore(MODEL, 1, if_match=etag),
    ]
    for queue in queueing:
        with pytest.raises(ProblemError) as refusal:
            queue(old)
        assert (refusal.value.status, refusal.value.code) == (412, "precondition_failed")
        assert queue(new).request["base_version"] == 2
    assert client.edit(MODEL, operations).request["base_version"] is None


def test_an_intention_of_ones_own_is_carried_out_once(client: Client) -> None:
    jobs = {client.fit_factors(MODEL, idempotency_key="factors-of-june").id for _ in range(2)}
    assert len(jobs) == 1
    assert len({client.fit_factors(MODEL).id for _ in range(2)}) == 2


def test_keys(client: Client, service: Service) -> None:
    made = client.create_api_key("auditors", "auditor", models=[MODEL])
    with client_of(service, made.key) as auditor:
        assert [model.id for model in auditor.models()] == [MODEL]
        with pytest.raises(ProblemError) as refusal:
            auditor.fit_factors(MODEL)
        assert (refusal.value.status, refusal.value.code) == (403, "forbidden")
        assert client.revoke_api_key(str(made.api_key.id)).revoked_at
        with pytest.raises(ProblemError, match="API key"):
            list(auditor.models())
    assert "auditors" in {key.name for key in client.api_keys()}


def test_a_job_is_waited_for_and_its_progress_told(client: Client, service: Service) -> None:
    job = client.fit_factors(MODEL)
    told: list[tuple[str, str | None, int]] = []

    def on_progress(reading: Job) -> None:
        told.append((reading.state, reading.stage, reading.progress.done))
        (start if reading.state == "queued" else end)(service, reading) if not reading.finished else None

    done = client.wait(job, on_progress=on_progress, poll_seconds=0)
    assert [state for state, _, _ in told] == ["queued", "running", "succeeded"]
    assert told[1] == ("running", "solving", 2)
    assert (done.state, done.report) == ("succeeded", {"seconds": 1.5})


def test_a_failed_job_says_why(client: Client, service: Service) -> None:
    edit = client.edit(MODEL, [remove_samples(["img-0"])])
    start(service, edit)
    end(service, edit, code="tolerance_exceeded")
    with pytest.raises(JobFailed, match=r"label F1 fell by 0.05 \(tolerance_exceeded\)") as failure:
        client.wait(edit)
    assert failure.value.job.error == resources.JobError(code="tolerance_exceeded", detail="label F1 fell by 0.05")


def test_patience_has_an_end(client: Client) -> None:
    job = client.fit_factors(MODEL)
    with pytest.raises(WaitTimeout, match="still queued after 0 s"):
        client.wait(job, timeout=0)


def test_a_problem_names_places_and_no_values(client: Client) -> None:
    operations = [remove_samples([f"secret-{number}" for number in range(7)])]
    with pytest.raises(ProblemError) as refusal:
        client.edit(MODEL, operations)
    problem = refusal.value
    assert (problem.status, problem.code, len(problem.errors)) == (422, "invalid_edit", 7)
    assert problem.request_id
    assert "/operations/0/samples/4: No sample" in str(problem)
    assert str(problem).endswith("and 2 more")
    assert "secret" not in str(problem)


def test_a_bad_manifest_names_rows(client: Client) -> None:
    rows = load().rows[:3]
    text = manifest(rows).decode().replace(rows[0].split, "somewhere", 1).encode()
    with pytest.raises(ProblemError, match="row 1, column split: unknown_split"):
        client.register_dataset(definition("strokes"), text, archive(rows))


BODIES: list[tuple[type[BaseModel], type[BaseModel]]] = [
    (resources.Dataset, DatasetBody),
    (resources.RegisteredDataset, RegisteredDatasetBody),
    (resources.Sample, SampleBody),
    (resources.Upload, UploadBody),
    (resources.Model, ModelBody),
    (resources.Version, VersionBody),
    (resources.Alias, AliasBody),
    (resources.Job, JobBody),
    (resources.EditCheck, EditCheck),
    (resources.LedgerEntry, LedgerEntryBody),
    (resources.ApiKey, ApiKeyBody),
]


@pytest.mark.parametrize(("resource", "body"), BODIES, ids=[resource.__name__ for resource, _ in BODIES])
def test_resources_have_all_that_the_service_says(resource: type[BaseModel], body: type[BaseModel]) -> None:
    assert set(resource.model_fields) == set(body.model_fields)


JOB: dict[str, Any] = {
    "id": "00000000-0000-0000-0000-000000000001",
    "model": MODEL,
    "kind": "edit",
    "state": "queued",
    "stage": None,
    "progress": {"done": 0, "total": 0},
    "attempt": 0,
    "cancel_requested": False,
    "request": {},
    "base_version": None,
    "result": None,
    "error": None,
    "report": None,
    "created_at": "2025-01-01T00:00:00Z",
    "started_at": None,
    "finished_at": None,
    "invented_later": 1,
}

Answer = httpx.Response | Exception


class Line:
    """A connection that answers as it is told, then with a job; it keeps the requests."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = self._answers.pop(0) if self._answers else httpx.Response(202, json=JOB)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self) -> Client:
        return Client("http://service.test", "key", transport=httpx.MockTransport(self))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.0)


def _problem(status: int, code: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "title": code}, headers=headers)


BROKEN: list[Callable[[], Answer]] = [
    lambda: httpx.ConnectError("refused"),
    lambda: httpx.RemoteProtocolError("disconnected"),
    lambda: httpx.ReadTimeout("too slow"),
    lambda: _problem(503, "unavailable", **{"Retry-After": "0"}),
    lambda: _problem(409, "idempotency_in_flight", **{"Retry-After": "0"}),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_creating_request_is_sent_again_under_the_same_key(broken: Callable[[], Answer]) -> None:
    line = Line(broken(), broken())
    with line.client() as client:
        assert client.edit(MODEL, [remove_samples(["a"])]).state == "queued"
    assert len(line.requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in line.requests}) == 1
    assert len({request.content for request in line.requests}) == 1


def test_files_are_sent_again_from_their_beginning(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"pixels")
    line = Line(httpx.ReadError("gone"), httpx.Response(201, json={"uploads": []}))
    with line.client() as client:
        assert client.upload("image", {"a.png": tmp_path / "a.png"}) == []
    assert [request.content.count(b"pixels") for request in line.requests] == [1, 1]


def test_making_a_key_is_not_repeated() -> None:
    line = Line(httpx.ReadError("gone"))
    with line.client() as client, pytest.raises(ServiceUnreachable, match="does not answer"):
        client.create_api_key("name", "admin")
    assert len(line.requests) == 1


def test_a_service_that_stays_away_is_given_up() -> None:
    line = Line(*(httpx.ConnectError("refused") for _ in range(9)))
    with line.client() as client, pytest.raises(ServiceUnreachable, match="modelmend serve"):
        client.model(MODEL)
    assert len(line.requests) == connection.ATTEMPTS


def test_a_refusal_is_not_repeated() -> None:
    line = Line(_problem(409, "already_exists"))
    with line.client() as client, pytest.raises(ProblemError):
        client.create_model("m", "d", {"name": "small_conv"})
    assert len(line.requests) == 1


@pytest.mark.parametrize(
    "answer", [httpx.Response(200, text="<html>"), httpx.Response(200, json=[]), httpx.Response(200, json={"jobs": {}})]
)
def test_something_else_that_answers_is_told_apart(answer: httpx.Response) -> None:
    with Line(answer).client() as client, pytest.raises(ServiceUnreachable, match="is not this service"):
        list(client.jobs(MODEL))


def test_a_failure_that_is_no_problem_is_told_with_its_status() -> None:
    line = Line(httpx.Response(502, text="<html>bad gateway"))
    with line.client() as client, pytest.raises(ProblemError, match="502 Bad Gateway"):
        client.model(MODEL)


def test_keys_of_samples_are_one_part_of_a_path() -> None:
    line = Line(httpx.Response(200, content=b"png"))
    with line.client() as client:
        client.image("digits", "ä b?c#d")
    assert line.requests[0].url.raw_path == b"/datasets/digits/samples/%C3%A4%20b%3Fc%23d/image"
