from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from app.access.rules import Role
from app.tables import Dataset, Sample
from tests.app.artifacts.files import files_holding
from tests.app.datasets.images import encoded
from tests.app.datasets.submissions import Submission, register, rows_of
from tests.app.service import Service, problem
from tests.builders import build_model


def pages(service: Service, path: str, **parameters: Any) -> list[list[str]]:
    """Keys of all samples, page by page."""
    found = []
    token = None
    while True:
        body = service.get(path, params={**parameters, **({"page_token": token} if token else {})}).json()
        found.append([sample["key"] for sample in body["samples"]])
        token = body["next_page_token"]
        if token is None:
            return found


def test_a_data_set_is_read_as_it_was_registered(service: Service) -> None:
    registered = register(service).json()
    body = service.get("/datasets/shapes").json()
    assert body == {name: value for name, value in registered.items() if name != "unreferenced_images"}
    assert body["classes"] == ["disc", "box"]


@pytest.mark.parametrize("path", ["nothing", "No-Slug", "a%0Ab", "nothing/samples", "nothing/samples/k/image"])
def test_what_is_not_there_is_not_found(unchanged: Service, path: str) -> None:
    problem(unchanged.get(f"/datasets/{path}"), 404, "not_found")


@pytest.mark.parametrize("key", ["img-99", "a%0Ab", "%ED%A0%80"])
def test_samples_that_are_not_there_are_not_found(service: Service, key: str) -> None:
    register(service)
    problem(service.get(f"/datasets/shapes/samples/{key}"), 404, "not_found")
    problem(service.get(f"/datasets/shapes/samples/{key}/image"), 404, "not_found")


def test_data_sets_are_listed_in_pages_by_id(service: Service) -> None:
    for name in ("c", "a", "b"):
        submission = Submission(rows_of(2))
        submission.definition["id"] = name
        register(service, submission.parts())
    first = service.get("/datasets", params={"page_size": 2}).json()
    assert [dataset["id"] for dataset in first["datasets"]] == ["a", "b"]
    second = service.get("/datasets", params={"page_size": 2, "page_token": first["next_page_token"]}).json()
    assert ([dataset["id"] for dataset in second["datasets"]], second["next_page_token"]) == (["c"], None)


def test_samples_are_listed_in_the_order_they_came(service: Service) -> None:
    register(service, Submission(rows_of(10)).parts())
    found = pages(service, "/datasets/shapes/samples", page_size=4)
    assert [len(page) for page in found] == [4, 4, 2]
    assert [key for page in found for key in page] == [f"img-{number}" for number in range(10)]


def test_samples_are_filtered_by_split_and_class(service: Service) -> None:
    rows = rows_of(16)
    register(service, Submission(rows).parts())
    found = pages(service, "/datasets/shapes/samples", page_size=3, split="train", **{"class": "box"})
    assert [key for page in found for key in page] == [
        row["key"] for row in rows if (row["split"], row["class"]) == ("train", "box")
    ]


def test_filters_that_name_nothing_known_are_refused(service: Service) -> None:
    register(service)
    problem(service.get("/datasets/shapes/samples?class=cone"), 422, "invalid_request")
    problem(service.get("/datasets/shapes/samples?split=validation"), 422, "invalid_request")


def test_a_token_is_good_for_its_own_list_only(service: Service) -> None:
    register(service)
    token = service.get("/datasets/shapes/samples?page_size=1").json()["next_page_token"]
    problem(service.get(f"/datasets/shapes/samples?split=train&page_token={token}"), 400, "invalid_cursor")


@pytest.mark.parametrize(
    ("role", "shown"),
    [(Role.ADMIN, True), (Role.COMPLIANCE, True), (Role.CLIENT, False), (Role.AUDITOR, False)],
)
def test_references_of_subjects_are_for_compliance_and_administrators(
    service: Service, role: Role, shown: bool
) -> None:
    register(service)
    key = service.key_of(role)
    one = service.get("/datasets/shapes/samples/img-1", key=key).json()
    assert (one["has_subject"], one["subject"]) == (True, "patient 0" if shown else None)
    listed = service.get("/datasets/shapes/samples", key=key).json()["samples"]
    assert listed[1] == one
    assert (listed[0]["has_subject"], listed[0]["subject"]) == (False, None)


def test_a_sample_shows_labels_by_name(service: Service) -> None:
    register(service)
    body = service.get("/datasets/shapes/samples/img-5").json()
    assert body["class"] == "box"
    assert body["concepts"] == {"round": 1, "dark, very": None}


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP", "BMP"])
def test_an_image_is_given_back_byte_by_byte(service: Service, format_: str) -> None:
    submission = Submission()
    image = encoded(5, format_)
    submission.images["images/0.png"] = image
    register(service, submission.parts())
    answer = service.get("/datasets/shapes/samples/img-0/image")
    assert answer.content == image
    assert answer.headers["content-type"] == f"image/{format_.lower()}"
    assert answer.headers["cache-control"] == "no-store"


def test_one_samples_bytes_can_be_removed_physically(service: Service) -> None:
    submission = Submission()
    register(service, submission.parts())
    image = submission.images["images/3.png"]
    folder = service.services.settings.data_dir
    with service.sessions() as session:
        sample_id = session.scalars(select(Sample.id).where(Sample.key == "img-3")).one()
    assert len(files_holding(folder, image)) == 1
    service.store.delete_images("shapes", [sample_id])
    assert files_holding(folder, image) == []
    problem(service.get("/datasets/shapes/samples/img-3/image"), 404, "not_found")
    assert service.get("/datasets/shapes/samples/img-4/image").content == submission.images["images/4.png"]


def test_a_limited_key_sees_data_of_its_models_and_its_own(service: Service) -> None:
    limited = service.key_of(Role.CLIENT, models=["m"])
    register(service)
    problem(service.get("/datasets/shapes", key=limited), 404, "not_found")
    problem(service.get("/datasets/shapes/samples", key=limited), 404, "not_found")
    assert service.get("/datasets", key=limited).json()["datasets"] == []

    own = Submission()
    own.definition["id"] = "own"
    assert register(service, own.parts(), key=limited).status_code == 201
    assert service.get("/datasets/own", key=limited).status_code == 200

    with service.sessions.begin() as session:
        build_model(session, session.get_one(Dataset, "shapes"), model_id="m")
    assert service.get("/datasets/shapes/samples", key=limited).status_code == 200
    assert [dataset["id"] for dataset in service.get("/datasets", key=limited).json()["datasets"]] == ["own", "shapes"]


def test_reading_needs_a_key(unchanged: Service) -> None:
    problem(unchanged.get("/datasets", key="mm_nothing"), 401, "unauthenticated")
