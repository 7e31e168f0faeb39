"""Registering data sets, and reading them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.access.dependencies import Creator, Reader
from app.access.rules import Role
from app.datasets import repository, service
from app.datasets.archives import ImageSource, PartImages, ZipImages, is_zip
from app.datasets.images import ImageLimits
from app.datasets.intake import Submission
from app.datasets.manifest import Manifest, read_manifest
from app.datasets.names import is_key
from app.datasets.problems import INVALID_ARCHIVE, INVALID_MANIFEST
from app.datasets.report import ManifestErrorCode, Report
from app.datasets.schemas import (
    DatasetBody,
    DatasetDefinition,
    DatasetList,
    RegisteredDatasetBody,
    SampleBody,
    SampleList,
    VoteRule,
)
from app.datasets.snapshots import SPLITS
from app.datasets.vote_files import read_votes
from app.datasets.votes import SILENT, Votes, ballots
from app.kit import strict_json
from app.kit.context import ServicesDep
from app.kit.idempotency import CREATING_PROBLEMS, Answer, IdempotencyKeyDep, claim_key, payload_digest
from app.kit.pagination import PageDep, fetch_page
from app.kit.problems import (
    ALREADY_EXISTS,
    INVALID_CURSOR,
    INVALID_REQUEST,
    MALFORMED_BODY,
    NOT_FOUND,
    PAYLOAD_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
)
from app.kit.responses import problem_responses
from app.kit.routing import make_router
from app.kit.schemas import SLUG_PATTERN
from app.settings import Settings
from app.tables import Dataset, Sample
from app.uploads.multipart import MultipartDep, MultipartForm, multipart_body

router: APIRouter = make_router("datasets")

_SLUG = re.compile(SLUG_PATTERN)
_SEES_SUBJECTS = frozenset({Role.COMPLIANCE, Role.ADMIN})
_MEDIA_TYPES = ((b"\x89PNG", "image/png"), (b"\xff\xd8", "image/jpeg"), (b"RIFF", "image/webp"), (b"BM", "image/bmp"))

_CODES = "\n".join(f"- `{code}`: {code.description}" for code in ManifestErrorCode)
_REGISTER = f"""Register training data from a manifest and its images, all or nothing.

The manifest is CSV (UTF-8, commas) or Parquet with the columns `key`, `split` (train, calibration, test), `class`,
`image`, optionally `subject`, and one per concept, in any order. A label is `0`, `1`, or unknown: an empty cell, the
word `unknown`, in Parquet also null or a floating-point NaN. `image` names a member of the zip archive, or one of the
files. PNG, JPEG, WebP and BMP are read. Files that no row names are not kept, only counted.

Where classes vote on concept labels, the definition has a `vote_rule`, and the part `votes` is Parquet: `key`, and
`votes`, one byte per attribute (0 for no annotation, else label + 2 × certainty, 1 to 4), the attributes' names as
JSON in the metadata `attributes`, and `format` there is `modelmend.votes.1`. Labels of the manifest agree with the
votes, or are left empty.

Every bad row is reported with `row` (the first data row is 1), `column` and `code`; `errors` lists the first 1,000 and
`errors_total` counts them all. Codes:

{_CODES}
"""


@router.post(
    "/datasets",
    status_code=201,
    summary="Register a data set",
    description=_REGISTER,
    response_model=RegisteredDatasetBody,
    responses=problem_responses(
        INVALID_REQUEST,
        INVALID_MANIFEST,
        INVALID_ARCHIVE,
        ALREADY_EXISTS,
        MALFORMED_BODY,
        PAYLOAD_TOO_LARGE,
        UNSUPPORTED_MEDIA_TYPE,
        *CREATING_PROBLEMS,
    ),
    openapi_extra=multipart_body(
        {
            "type": "object",
            "required": ["definition", "manifest", "images"],
            "properties": {
                "definition": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": DatasetDefinition.model_json_schema(),
                },
                "manifest": {"type": "string", "format": "binary", "description": "CSV or Parquet."},
                "images": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "string", "format": "binary"},
                    "description": "One zip archive, or the image files.",
                },
                "votes": {"type": "string", "format": "binary", "description": "Parquet, where classes vote."},
            },
        }
    ),
)
def post_dataset(services: ServicesDep, caller: Creator, key: IdempotencyKeyDep, form: MultipartDep) -> JSONResponse:
    form.only("definition", "manifest", "images", "votes")
    settings = services.settings
    limits = ImageLimits.of(settings)
    with services.sessions.begin() as session:
        claim = claim_key(session, caller_id=caller.key_id, key=key, payload_sha256=payload_digest(form.digest()))
        if (replay := claim.replay()) is not None:
            return replay
        definition = _definition(form, settings)
        images = _images(form, settings, limits)
        report = Report()
        with form.open(form.one("manifest")) as file:
            manifest = read_manifest(file, definition, max_rows=settings.max_manifest_rows, report=report)
        votes = _votes(form, definition, manifest, report)
        registered = service.register_dataset(
            session,
            services.store,
            caller,
            Submission(definition, manifest, images, votes),
            limits=limits,
            report=report,
        )
        session.refresh(registered.dataset)
        body = RegisteredDatasetBody(
            **_body(registered.dataset).model_dump(), unreferenced_images=registered.unreferenced_images
        )
        answer = Answer(201, body.model_dump(mode="json"), {"Location": f"/datasets/{body.id}"})
        claim.record(session, answer)
    return answer.response()


def _definition(form: MultipartForm, settings: Settings) -> DatasetDefinition:
    part = form.one("definition")
    if part.size > settings.max_request_bytes:
        raise Problem(PAYLOAD_TOO_LARGE, f"A definition may have at most {settings.max_request_bytes} bytes.")
    try:
        value: Any = strict_json.parse(form.read(part))
        return DatasetDefinition.model_validate(value)
    except strict_json.NotStrictJson as error:
        raise Problem(
            INVALID_REQUEST,
            "The definition is not strict JSON in UTF-8.",
            errors=[{"pointer": "/definition", "code": "not_json"}],
        ) from error
    except ValidationError as error:
        found = [{**finding, "loc": ("body", "definition", *finding["loc"])} for finding in error.errors()]
        raise RequestValidationError(found, body={"definition": value}) from error


def _votes(form: MultipartForm, definition: DatasetDefinition, manifest: Manifest, report: Report) -> Votes | None:
    if bool(form.named("votes")) != (definition.vote_rule is not None):
        raise Problem(
            INVALID_REQUEST,
            "A `vote_rule` in the definition and the part `votes` come together.",
            errors=[{"pointer": "/votes", "code": "missing" if definition.vote_rule else "without_vote_rule"}],
        )
    if definition.vote_rule is None:
        return None
    with form.open(form.one("votes")) as file:
        return read_votes(file, definition, manifest, report=report)


def _images(form: MultipartForm, settings: Settings, limits: ImageLimits) -> ImageSource:
    parts = form.named("images")
    if not parts:
        raise Problem(INVALID_REQUEST, "Send images.", errors=[{"pointer": "/images", "code": "missing"}])
    if len(parts) == 1:
        file = form.open(parts[0])
        head = file.read(4)
        if is_zip(head):
            return ZipImages(
                file,
                limits,
                max_members=settings.max_manifest_rows,
                max_unpacked_bytes=settings.max_upload_bytes,
            )
    return PartImages(form, parts, limits)


@router.get("/datasets", summary="Data sets by id", responses=problem_responses(INVALID_REQUEST, INVALID_CURSOR))
def list_datasets(services: ServicesDep, caller: Reader, page: PageDep) -> DatasetList:
    with services.sessions() as session:
        statement = select(Dataset).where(repository.visible_to(caller))
        rows, token = fetch_page(session, statement, column=Dataset.id, page=page, scope="datasets")
        return DatasetList(datasets=[_body(row) for row in rows], next_page_token=token)


@router.get("/datasets/{dataset_id}", summary="A data set", responses=problem_responses(NOT_FOUND))
def get_dataset(dataset_id: str, services: ServicesDep, caller: Reader) -> DatasetBody:
    with services.sessions() as session:
        return _body(_found(session, caller, dataset_id))


@router.get(
    "/datasets/{dataset_id}/samples",
    summary="Rows of a data set, in the order they came",
    responses=problem_responses(INVALID_REQUEST, INVALID_CURSOR, NOT_FOUND),
)
def list_samples(
    dataset_id: str,
    *,
    services: ServicesDep,
    caller: Reader,
    page: PageDep,
    split: Annotated[Literal["train", "calibration", "test"] | None, Query()] = None,
    class_name: Annotated[str | None, Query(alias="class", description="Name of a class.")] = None,
) -> SampleList:
    with services.sessions() as session:
        dataset = _found(session, caller, dataset_id)
        statement = service.samples_of(dataset, split=split, class_name=class_name)
        scope = f"datasets/{dataset.id}/samples {split} {class_name}"
        rows, token = fetch_page(session, statement, column=Sample.id, page=page, scope=scope)
        return SampleList(samples=_sample_bodies(session, caller, dataset, list(rows)), next_page_token=token)


@router.get("/datasets/{dataset_id}/samples/{key}", summary="One row", responses=problem_responses(NOT_FOUND))
def get_sample(dataset_id: str, key: str, services: ServicesDep, caller: Reader) -> SampleBody:
    with services.sessions() as session:
        dataset = _found(session, caller, dataset_id)
        return _sample_bodies(session, caller, dataset, [_found_sample(session, dataset, key)])[0]


@router.get(
    "/datasets/{dataset_id}/samples/{key}/image",
    summary="A row's image, as it came",
    response_class=Response,
    responses={
        **problem_responses(NOT_FOUND),
        200: {"content": {media_type: {} for _, media_type in _MEDIA_TYPES}},
    },
)
def get_image(dataset_id: str, key: str, services: ServicesDep, caller: Reader) -> Response:
    with services.sessions() as session:
        dataset = _found(session, caller, dataset_id)
        sample = _found_sample(session, dataset, key)
    try:
        data = services.store.image_path(dataset.id, sample.id).read_bytes()
    except FileNotFoundError:
        raise Problem(NOT_FOUND, "The sample's image is not stored any more.") from None
    media_type = next(name for start, name in _MEDIA_TYPES if data.startswith(start))
    # No copy of personal data in caches, which an erasure would not reach.
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type=media_type, headers=headers)


def _found(session: Session, caller: Caller, dataset_id: str) -> Dataset:
    if not _SLUG.fullmatch(dataset_id):
        raise Problem(NOT_FOUND, "There is no such data set.")
    return service.require_dataset(session, caller, dataset_id)


def _found_sample(session: Session, dataset: Dataset, key: str) -> Sample:
    if not is_key(key):
        raise Problem(NOT_FOUND, "The data set has no such sample.")
    return service.find_sample(session, dataset, key)


def _body(dataset: Dataset) -> DatasetBody:
    return DatasetBody(
        id=dataset.id,
        title=dataset.title,
        concepts=dataset.concepts,
        classes=dataset.classes,
        counts={split: dataset.counts[split] for split in SPLITS},
        vote_rule=None if dataset.vote_rule is None else VoteRule.model_validate(dataset.vote_rule),
        snapshot_sha256=dataset.snapshot_digest,
        created_at=dataset.created_at,
    )


def _cast(dataset: Dataset, votes: bytes) -> dict[str, int | None]:
    cast = (None if value == SILENT else value for value in ballots(np.frombuffer(votes, np.uint8)).tolist())
    return dict(zip(dataset.concepts, cast, strict=True))


def _sample_bodies(session: Session, caller: Caller, dataset: Dataset, rows: list[Sample]) -> list[SampleBody]:
    shown = caller.role in _SEES_SUBJECTS
    references = repository.subject_references(session, rows) if shown else {}
    return [
        SampleBody.model_validate(
            {
                "key": row.key,
                "split": row.split,
                "class_": dataset.classes[row.class_index],
                "concepts": dict(zip(dataset.concepts, row.concepts, strict=True)),
                "votes": None if row.votes is None else _cast(dataset, row.votes),
                "image_sha256": row.image_sha256,
                "image_bytes": row.image_bytes,
                "has_subject": row.subject_id is not None,
                "subject": None if row.subject_id is None else references.get(row.subject_id),
            }
        )
        for row in rows
    ]
