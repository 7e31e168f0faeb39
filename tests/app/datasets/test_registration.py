from __future__ import annotations

import errno
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.access.rules import Role
from app.artifacts import LocalArtifactStore
from app.datasets.snapshots import SPLITS, UNKNOWN, Snapshot
from app.tables import Dataset, LedgerEntry, Sample, Subject
from tests.app.datasets.images import declaring, deep, encoded
from tests.app.datasets.submissions import FilePart, Submission, register, rows_of, state
from tests.app.service import Service, problem, running_service
from tests.builders import payload_of


@pytest.mark.parametrize("many_files", [False, True], ids=["zip", "files"])
@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_a_data_set_is_registered(service: Service, format_: str, many_files: bool) -> None:
    submission = Submission(rows_of(10))
    manifest = submission.csv() if format_ == "csv" else submission.parquet()
    answer = register(service, submission.parts(manifest=manifest, many_files=many_files))
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == "/datasets/shapes"
    body = answer.json()
    assert body["counts"] == {"train": 6, "calibration": 2, "test": 2}
    assert body["unreferenced_images"] == 0

    with service.sessions() as session:
        samples = session.scalars(select(Sample).order_by(Sample.id)).all()
        subjects = dict(session.execute(select(Subject.id, Subject.reference)).all())
        snapshot = Snapshot.load(service.store.fetch(session.get_one(Dataset, "shapes").snapshot_digest))
    assert body["snapshot_sha256"] == snapshot.digest
    assert snapshot.sample_ids.tolist() == [sample.id for sample in samples]
    for index, (row, sample) in enumerate(zip(submission.rows, samples, strict=True)):
        labels = [row["round"], row["dark, very"]]
        assert (sample.key, sample.split, sample.concepts) == (row["key"], row["split"], labels)
        assert submission.definition["classes"][sample.class_index] == row["class"]
        assert (subjects[sample.subject_id] if sample.subject_id else None) == row["subject"]
        image = submission.images[row["image"]]
        assert service.store.image_path("shapes", sample.id).read_bytes() == image
        assert (sample.image_sha256, sample.image_bytes) == (hashlib.sha256(image).hexdigest(), len(image))
        assert SPLITS[snapshot.splits[index]] == row["split"]
        assert snapshot.classes[index] == sample.class_index
        assert snapshot.concepts[index].tolist() == [UNKNOWN if label is None else label for label in labels]


def test_the_history_says_how_much_was_registered_and_nothing_personal(service: Service) -> None:
    digest = register(service).json()["snapshot_sha256"]
    with service.sessions() as session:
        entry = session.scalars(select(LedgerEntry).where(LedgerEntry.kind == "dataset.registered")).one()
        payload = payload_of(session, entry)
    assert (entry.dataset_id, entry.artifact_sha256) == ("shapes", digest)
    assert payload == {
        "counts": {"train": 4, "calibration": 1, "test": 1},
        "concepts": 2,
        "classes": 2,
        "subjects": 2,
    }


def test_an_id_is_made_up_when_none_is_given(service: Service) -> None:
    submission = Submission()
    del submission.definition["id"]
    made_up = register(service, submission.parts()).json()["id"]
    assert service.get(f"/datasets/{made_up}").status_code == 200


def test_a_second_data_set_shares_subjects_and_no_images(service: Service) -> None:
    register(service)
    submission = Submission()
    submission.definition["id"] = "more"
    assert register(service, submission.parts()).status_code == 201
    with service.sessions() as session:
        assert session.scalars(select(Subject.reference).order_by(Subject.reference)).all() == [
            "patient 0",
            "patient 1",
        ]
    assert len(list((service.services.settings.data_dir / "artifacts" / "images").rglob("*/*/*"))) == 12


def test_an_id_that_is_taken_is_refused(service: Service) -> None:
    register(service)
    before = state(service)
    problem(register(service), 409, "already_exists")
    assert state(service) == before


def test_two_rows_may_share_an_image_and_own_a_copy_each(service: Service) -> None:
    submission = Submission()
    submission.rows[1]["image"] = submission.rows[0]["image"]
    assert register(service, submission.parts()).json()["unreferenced_images"] == 1
    with service.sessions() as session:
        ids = session.scalars(select(Sample.id).order_by(Sample.id)).all()
    first, second = (service.store.image_path("shapes", sample_id) for sample_id in ids[:2])
    assert first.read_bytes() == second.read_bytes()
    assert not first.samefile(second)


def test_files_that_no_row_names_are_counted_and_not_kept(service: Service) -> None:
    submission = Submission()
    submission.images |= {"__MACOSX/._0.png": b"junk", "README": b"read me, I am not an image"}
    answer = register(service, submission.parts())
    assert answer.json()["unreferenced_images"] == 2
    assert len(state(service)["files"]) == 6 + 1  # images and the snapshot


def bad_images() -> dict[str, bytes]:
    gif = encoded(format_="GIF", size=16)
    return {
        "undecodable_image": b"no image",
        "oversized_image": declaring(10_000, 10_000),
        "unsupported_pixels": deep(),
        "undecodable_image ": encoded()[:-1],
        " undecodable_image": gif,
    }


@pytest.mark.parametrize("many_files", [False, True], ids=["zip", "files"])
def test_every_bad_row_is_reported_and_nothing_is_imported(unchanged: Service, many_files: bool) -> None:
    submission = Submission(rows_of(12))
    expected = []
    for number, (code, data) in enumerate(bad_images().items()):
        submission.images[submission.rows[number]["image"]] = data
        expected.append({"row": number + 1, "column": "image", "code": code.strip()})
    del submission.images[submission.rows[5]["image"]]
    submission.rows[6]["class"] = "cone"
    submission.rows[7]["round"] = "nan"
    submission.rows[8]["key"] = submission.rows[0]["key"]
    submission.rows[9]["split"] = "validation"
    submission.rows[10]["dark, very"] = 2
    submission.images[submission.rows[10]["image"]] = b"bad as well"
    expected += [
        {"row": 6, "column": "image", "code": "missing_image"},
        {"row": 7, "column": "class", "code": "unknown_class"},
        {"row": 8, "column": "round", "code": "label_not_0_1_unknown"},
        {"row": 9, "column": "key", "code": "duplicate_key"},
        {"row": 10, "column": "split", "code": "unknown_split"},
        {"row": 11, "column": "image", "code": "undecodable_image"},
        {"row": 11, "column": "dark, very", "code": "label_not_0_1_unknown"},
    ]
    manifest = submission.csv() + b"img-99,train\r\n"
    expected.append({"row": 13, "column": None, "code": "wrong_concept_count"})
    before = state(unchanged)
    found = problem(
        register(unchanged, submission.parts(manifest=manifest, many_files=many_files)), 422, "invalid_manifest"
    )
    assert found["errors"] == expected
    assert found["errors_total"] == len(expected)
    assert found["detail"] == f"{len(expected)} places are wrong; nothing was imported."
    assert state(unchanged) == before


def test_one_bad_row_is_told_in_the_singular(unchanged: Service) -> None:
    submission = Submission()
    manifest = submission.csv() + b"img-99,train\r\n"
    found = problem(register(unchanged, submission.parts(manifest=manifest)), 422, "invalid_manifest")
    assert found["detail"] == "1 place is wrong; nothing was imported."


def test_a_long_report_is_cut_and_counted(unchanged: Service) -> None:
    rows = [{**rows_of(1)[0], "key": f"k-{number}", "class": "cone"} for number in range(1200)]
    found = problem(register(unchanged, Submission(rows).parts()), 422, "invalid_manifest")
    assert (len(found["errors"]), found["errors_total"]) == (1000, 1200)


def test_a_refused_submission_may_be_corrected_and_sent_with_the_same_key(service: Service) -> None:
    submission = Submission()
    submission.rows[0]["class"] = "cone"
    problem(register(service, submission.parts(), idempotency_key="k"), 422, "invalid_manifest")
    assert register(service, idempotency_key="k").status_code == 201


def test_the_same_request_again_gets_the_first_answer(service: Service) -> None:
    first = register(service, idempotency_key="k")
    before = state(service)
    again = register(service, idempotency_key="k")
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    submission = Submission()
    submission.images["images/0.png"] = encoded(99)
    problem(register(service, submission.parts(), idempotency_key="k"), 422, "idempotency_key_reused")
    assert state(service) == before


def changed_definition(**members: Any) -> list[FilePart]:
    submission = Submission()
    submission.definition |= members
    return submission.parts()


@pytest.mark.parametrize(
    ("members", "pointer", "code"),
    [
        ({"concepts": []}, "/definition/concepts", "too_short"),
        ({"concepts": ["a", "a"]}, "/definition", "repeated_name"),
        ({"concepts": ["key"]}, "/definition", "reserved_name"),
        ({"concepts": ["a", "b\n"]}, "/definition/concepts/1", "invalid_name"),
        ({"concepts": ["a", ""]}, "/definition/concepts/1", "invalid_name"),
        ({"concepts": ["a" * 101]}, "/definition/concepts/0", "invalid_name"),
        ({"concepts": [f"c{number}" for number in range(1001)]}, "/definition/concepts", "too_long"),
        ({"concepts": [1]}, "/definition/concepts/0", "string_type"),
        ({"classes": ["only"]}, "/definition/classes", "too_short"),
        ({"classes": ["a", "a"]}, "/definition", "repeated_name"),
        ({"classes": [str(number) for number in range(10_001)]}, "/definition/classes", "too_long"),
        ({"id": "Not A Slug"}, "/definition/id", "string_pattern_mismatch"),
        ({"id": "../../etc"}, "/definition/id", "string_pattern_mismatch"),
        ({"title": ""}, "/definition/title", "string_too_short"),
        ({"secret": 1}, "/definition/secret", "unknown_field"),
    ],
)
def test_bad_definitions_are_refused(unchanged: Service, members: dict[str, Any], pointer: str, code: str) -> None:
    found = problem(register(unchanged, changed_definition(**members)), 422, "invalid_request")
    assert [(error["pointer"], error["code"]) for error in found["errors"]] == [(pointer, code)]


@pytest.mark.parametrize("text", [b"", b"{", b'{"id": NaN}', b"\xff", b"[]", b'"x"', b'{"title": "\\u0000"}'])
def test_definitions_that_are_no_objects_are_refused(unchanged: Service, text: bytes) -> None:
    parts = [("definition", (None, text)), *Submission().parts()[1:]]
    problem(register(unchanged, parts), 422, "invalid_request")


@pytest.mark.parametrize("name", ["definition", "manifest", "images"])
def test_every_part_is_needed(unchanged: Service, name: str) -> None:
    parts = [part for part in Submission().parts() if part[0] != name]
    found = problem(register(unchanged, parts), 422, "invalid_request")
    assert found["errors"] == [{"pointer": f"/{name}", "code": "missing"}]


def test_parts_that_are_not_known_or_come_twice_are_refused(unchanged: Service) -> None:
    parts = Submission().parts()
    problem(register(unchanged, [*parts, ("more", (None, b"x"))]), 422, "invalid_request")
    problem(register(unchanged, [*parts, ("manifest", ("m", b"x"))]), 422, "invalid_request")


def zip_of(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("archive", "status", "code"),
    [
        (zip_of(("images/0.png", bytes(50 << 20))), 422, "invalid_archive"),
        (zip_of(("xx/0.png", encoded())).replace(b"xx/0", b"../0"), 422, "invalid_archive"),
        (zip_of(("x0.png", encoded())).replace(b"x0", b"/0"), 422, "invalid_archive"),
        (zip_of(("images/0.png", encoded()))[:-30], 422, "invalid_archive"),
    ],
    ids=["bomb", "traversal", "absolute", "truncated"],
)
def test_hostile_archives_are_refused_and_change_nothing(
    unchanged: Service, archive: bytes, status: int, code: str
) -> None:
    before = state(unchanged)
    problem(register(unchanged, Submission().parts(archive=archive)), status, code)
    assert state(unchanged) == before


def test_file_names_that_lead_elsewhere_are_refused(unchanged: Service) -> None:
    submission = Submission()
    submission.images["../../etc/passwd"] = encoded()
    found = problem(register(unchanged, submission.parts(many_files=True)), 422, "invalid_archive")
    assert found["errors"] == [{"entry": 7, "code": "unsafe_path"}]


def test_limits_of_the_deployment_hold(database_url: str, tmp_path: Path) -> None:
    with running_service(database_url, tmp_path, max_manifest_rows=5) as service:
        problem(register(service), 413, "payload_too_large")
    with running_service(database_url, tmp_path, max_image_bytes=50) as service:
        found = problem(register(service), 422, "invalid_manifest")
        assert {error["code"] for error in found["errors"]} == {"oversized_image"}
    with running_service(database_url, tmp_path, max_image_pixels=63) as service:
        found = problem(register(service), 422, "invalid_manifest")
        assert {error["code"] for error in found["errors"]} == {"oversized_image"}
    with running_service(database_url, tmp_path, max_upload_bytes=2000) as service:
        problem(register(service), 413, "payload_too_large")
    with running_service(database_url, tmp_path, max_request_bytes=50) as service:
        problem(register(service), 413, "payload_too_large")


class FullDisk(LocalArtifactStore):
    """Full when the second batch of images comes, and later not any more."""

    batches = 0

    def put_images(self, dataset_id: str, images: Mapping[int, bytes]) -> None:
        self.batches += 1
        if self.batches == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().put_images(dataset_id, images)


@pytest.fixture
def service_on_a_full_disk(database_url: str, tmp_path: Path) -> Iterator[Service]:
    with running_service(database_url, tmp_path) as service:
        services = replace(service.services, store=FullDisk(tmp_path / "artifacts"))
        service.client.app.state.services = services  # type: ignore[attr-defined]
        yield replace(service, services=services)


def test_a_disk_that_fills_up_halfway_leaves_nothing(
    service_on_a_full_disk: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.datasets.intake._BATCH_ROWS", 4)
    service = service_on_a_full_disk
    before = state(service)
    assert register(service).status_code == 500
    assert state(service) == before
    assert register(service).status_code == 201


def test_a_failure_after_everything_was_written_leaves_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(service)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr("app.datasets.service.ledger.append", fail)
    assert register(service).status_code == 500
    assert state(service) == before


def test_no_subject_and_no_key_is_ever_logged(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    submission = Submission()
    submission.rows[0] |= {"subject": "Jane Doe", "key": "jane-doe", "class": "Doe"}
    answer = register(service, submission.parts())
    assert answer.status_code == 422
    del submission.rows[0]
    submission.rows[0] |= {"subject": "Jane Doe", "key": "jane-doe"}
    assert register(service, submission.parts()).status_code == 201
    written = "".join(capfd.readouterr())
    assert "/datasets" in written
    assert "doe" not in (written + answer.text).lower()


@pytest.mark.parametrize("role", [Role.AUDITOR, Role.COMPLIANCE])
def test_roles_that_may_not_create_are_refused_before_the_body_is_read(unchanged: Service, role: Role) -> None:
    problem(register(unchanged, key=unchanged.key_of(role)), 403, "forbidden")


def test_the_idempotency_key_is_needed(unchanged: Service) -> None:
    answer = unchanged.client.post(
        "/datasets", headers={"Authorization": f"Bearer {unchanged.key}"}, files=Submission().parts()
    )
    problem(answer, 400, "idempotency_key_missing")


def test_two_registrations_of_one_id_at_once_end_with_one(service: Service) -> None:
    """The second waits for the first's insert, and is refused without a trace."""
    parts = [Submission().parts(), Submission(rows_of(8)).parts()]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda own: register(service, own), parts))
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    with service.sessions() as session:
        ids = session.scalars(select(Sample.id)).all()
    assert len(state(service)["files"]) == len(ids) + 1
