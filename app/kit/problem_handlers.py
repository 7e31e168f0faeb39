"""Every failure that leaves the service leaves it as a problem."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.kit.pointers import json_pointer
from app.kit.problems import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MALFORMED_BODY,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PAYLOAD_TOO_LARGE,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    ProblemType,
)
from app.kit.request_ids import current_request_id

MAX_ERRORS = 1000

_BY_STATUS: Mapping[int, ProblemType] = {
    400: MALFORMED_BODY,
    404: NOT_FOUND,
    405: METHOD_NOT_ALLOWED,
    413: PAYLOAD_TOO_LARGE,
    415: UNSUPPORTED_MEDIA_TYPE,
    422: INVALID_REQUEST,
    503: UNAVAILABLE,
}

# Pydantic writes messages from a fixed text and a context. Contexts of these kinds hold the rule, not the value.
_RULE_IN_CONTEXT = frozenset(
    [
        "enum",
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
        "literal_error",
        "string_too_long",
        "string_too_short",
        "too_long",
        "too_short",
        "union_tag_not_found",
    ]
)
_OWN_MESSAGES = {
    "extra_forbidden": "This field is not known here.",
    "model_attributes_type": "This should be an object.",
    "string_pattern_mismatch": "The text does not have the documented form.",
    "union_tag_invalid": "This kind is not one of the documented ones.",
}
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def problem_response(problem: Problem) -> JSONResponse:
    """The answer that carries ``problem``."""
    return JSONResponse(
        problem.body(current_request_id()),
        status_code=problem.type.status,
        headers=problem.headers,
        media_type="application/problem+json",
    )


def places_detail(count: int) -> str:
    """The detail of a problem whose ``errors`` say it all."""
    return "1 place is not valid." if count == 1 else f"{count} places are not valid."


def validation_errors(error: RequestValidationError) -> list[dict[str, Any]]:
    """FastAPI's findings without the values they were found in (its default answer repeats them)."""
    return [_place(found, error.body) for found in error.errors()[:MAX_ERRORS]]


def _place(found: Mapping[str, Any], body: Any) -> dict[str, Any]:
    kind = str(found["type"])
    where, *rest = found["loc"]
    message = _OWN_MESSAGES.get(kind)
    if message is None:
        harmless = found.get("ctx") is None or kind in _RULE_IN_CONTEXT
        message = str(found["msg"]) if harmless else "The value is not valid here."
    place = (
        {"pointer": _pointer(rest, body, missing=kind == "missing")}
        if where == "body"
        else {"parameter": ".".join(map(str, rest))}
    )
    return {**place, "code": "unknown_field" if kind == "extra_forbidden" else kind, "message": message}


def _pointer(location: Sequence[str | int], body: Any, *, missing: bool) -> str:
    """``location`` as a pointer into ``body``: pydantic also lists tags of unions, which are not in the document."""
    segments: list[str | int] = []
    here = body
    for depth, segment in enumerate(location):
        if isinstance(here, dict) and segment in here:
            if not _FIELD_NAME.fullmatch(str(segment)):  # the name itself may be somebody's data
                break
            here = here[segment]
        elif isinstance(here, list) and isinstance(segment, int) and segment < len(here):
            here = here[segment]
        elif not (missing and depth == len(location) - 1):
            continue
        segments.append(segment)
    return json_pointer(segments)


async def _on_problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)  # noqa: S101 (registered for this class only)
    return problem_response(error)


async def _on_validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    places = validation_errors(error)
    return problem_response(Problem(INVALID_REQUEST, places_detail(len(places)), errors=places))


async def _on_http_exception(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101
    type_ = _BY_STATUS.get(error.status_code, INTERNAL_ERROR if error.status_code >= 500 else MALFORMED_BODY)
    return problem_response(Problem(type_, type_.title + ".", headers=error.headers))


def install_problem_handlers(app: FastAPI) -> None:
    """Answer all known failures of ``app`` as problems; unknown ones are caught by the outermost middleware."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
