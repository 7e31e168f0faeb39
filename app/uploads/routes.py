"""Sending files ahead of the request that uses them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from app.access.dependencies import Creator
from app.datasets.images import ImageLimits
from app.kit.context import ServicesDep
from app.kit.idempotency import CREATING_PROBLEMS, Answer, IdempotencyKeyDep, claim_key, payload_digest
from app.kit.problems import (
    INVALID_REQUEST,
    MALFORMED_BODY,
    PAYLOAD_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
)
from app.kit.responses import problem_responses
from app.kit.routing import make_router
from app.tables import Upload
from app.uploads.multipart import MultipartDep, MultipartForm, multipart_body
from app.uploads.problems import INVALID_UPLOAD
from app.uploads.schemas import UploadBody, UploadKind, UploadList
from app.uploads.service import create_uploads

router: APIRouter = make_router("uploads")


@router.post(
    "/uploads",
    status_code=201,
    summary="Send files for a later request",
    response_model=UploadList,
    responses=problem_responses(
        INVALID_REQUEST,
        INVALID_UPLOAD,
        MALFORMED_BODY,
        PAYLOAD_TOO_LARGE,
        UNSUPPORTED_MEDIA_TYPE,
        *CREATING_PROBLEMS,
    ),
    openapi_extra=multipart_body(
        {
            "type": "object",
            "required": ["files"],
            "properties": {"files": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}},
        }
    ),
)
def post_uploads(
    kind: Annotated[UploadKind, Query(description="Images for `add_samples`, or weights (safetensors) for a model.")],
    services: ServicesDep,
    caller: Creator,
    key: IdempotencyKeyDep,
    form: MultipartDep,
) -> JSONResponse:
    """Check and keep files for 24 hours, all or none. Their ids come in the order of the files.

    Codes of bad files: `undecodable_image`, `oversized_image`, `unsupported_pixels`, `not_safetensors`.
    """
    form.only("files")
    if not form.parts:
        raise Problem(INVALID_REQUEST, "Send files.", errors=[{"pointer": "/files", "code": "missing"}])
    payload = payload_digest({**form.digest(), "kind": kind.value})
    with services.sessions.begin() as session:
        claim = claim_key(session, caller_id=caller.key_id, key=key, payload_sha256=payload)
        if claim.first_answer is not None:
            return _named(claim.first_answer, form).response(replayed=True)
        uploads = create_uploads(
            session, services.store, caller, form, kind=kind, limits=ImageLimits.of(services.settings)
        )
        answer = Answer(201, {"uploads": [_shown(upload) for upload in uploads]})
        claim.record(session, answer)
    return _named(answer, form).response()


def _shown(upload: Upload) -> dict[str, Any]:
    body = UploadBody(
        id=upload.id,
        kind=UploadKind(upload.kind),
        filename=None,
        sha256=upload.sha256,
        bytes=upload.bytes,
        expires_at=upload.expires_at,
    )
    return body.model_dump(mode="json", exclude={"filename"})


def _named(answer: Answer, form: MultipartForm) -> Answer:
    """The answer with the files' names, which are in the request at hand and may be personal: nothing stores them."""
    uploads = [
        {**upload, "filename": part.filename} for upload, part in zip(answer.body["uploads"], form.parts, strict=True)
    ]
    return Answer(answer.status, {"uploads": uploads}, answer.headers)
