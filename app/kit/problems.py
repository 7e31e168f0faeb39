"""Problem details (RFC 9457): every public failure is one of the types listed here.

A problem never repeats input values or names of people: it points at the place (`errors[].pointer`) instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ProblemType:
    """One documented kind of failure; ``advice`` tells the caller what to do next."""

    code: str
    status: int
    title: str
    advice: str


class Problem(Exception):
    """Raised anywhere below a route; the application turns it into an ``application/problem+json`` answer."""

    def __init__(
        self,
        type_: ProblemType,
        detail: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{type_.code}: {detail}")
        self.type = type_
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})


PROBLEM_TYPES: dict[str, ProblemType] = {}


def _register(code: str, status: int, title: str, advice: str) -> ProblemType:
    if code in PROBLEM_TYPES:
        raise ValueError(f"problem type {code} is registered twice")
    PROBLEM_TYPES[code] = ProblemType(code, status, title, advice)
    return PROBLEM_TYPES[code]


INVALID_REQUEST = _register(
    "invalid_request", 422, "The request is not valid", "Correct each place that `errors` points at."
)
UNAUTHENTICATED = _register(
    "unauthenticated", 401, "The API key is missing, unknown or revoked", "Send `Authorization: Bearer KEY`."
)
FORBIDDEN = _register(
    "forbidden", 403, "The key's role may not do this", "Use a key whose role may; see the access table."
)
NOT_FOUND = _register(
    "not_found", 404, "There is no such resource", "Check the path; foreign resources look absent too."
)
METHOD_NOT_ALLOWED = _register("method_not_allowed", 405, "The resource has no such method", "See `/docs`.")
ALREADY_EXISTS = _register("already_exists", 409, "A resource with this id exists", "Choose another id.")
PAYLOAD_TOO_LARGE = _register("payload_too_large", 413, "The body is over a limit", "Send less at once.")
UNSUPPORTED_MEDIA_TYPE = _register(
    "unsupported_media_type", 415, "The body's media type is not read here", "See `/docs` for the types."
)
IDEMPOTENCY_KEY_MISSING = _register(
    "idempotency_key_missing",
    400,
    "Creating requests need an Idempotency-Key",
    "Send a fresh random key per intention.",
)
IDEMPOTENCY_KEY_REUSED = _register(
    "idempotency_key_reused", 422, "The key was used with another payload", "Send a fresh key."
)
IDEMPOTENCY_IN_FLIGHT = _register(
    "idempotency_in_flight", 409, "The first request with this key is still running", "Try again in a moment."
)
INTERNAL_ERROR = _register(
    "internal_error", 500, "The service failed", "Quote the request id to whoever runs the service."
)
