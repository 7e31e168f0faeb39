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

    @property
    def uri(self) -> str:
        """Reference used as `type`; relative to the service, where it answers with this documentation."""
        return f"/problems/{self.code}"


class Problem(Exception):
    """Raised anywhere below a route; the application turns it into an ``application/problem+json`` answer."""

    def __init__(
        self,
        type_: ProblemType,
        detail: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        """Args: ``members`` are extension members (RFC 9457, section 3.2) that this type documents."""
        super().__init__(f"{type_.code}: {detail}")
        self.type = type_
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})
        self.members = dict(members or {})

    def body(self, request_id: str) -> dict[str, Any]:
        """The members of the problem details object."""
        return {
            **self.members,
            "type": self.type.uri,
            "title": self.type.title,
            "status": self.type.status,
            "detail": self.detail,
            "code": self.type.code,
            "errors": self.errors,
            "request_id": request_id,
        }


PROBLEM_TYPES: dict[str, ProblemType] = {}


def register_problem_type(code: str, status: int, title: str, advice: str) -> ProblemType:
    """Add a documented type; each room registers its own at import. Raises ValueError when the code is taken."""
    if code in PROBLEM_TYPES:
        raise ValueError(f"problem type {code} is registered twice")
    PROBLEM_TYPES[code] = ProblemType(code, status, title, advice)
    return PROBLEM_TYPES[code]


INVALID_REQUEST = register_problem_type(
    "invalid_request", 422, "The request is not valid", "Correct each place that `errors` points at."
)
MALFORMED_BODY = register_problem_type(
    "malformed_body",
    400,
    "The body cannot be read",
    "Send JSON (without NaN, Infinity or NUL) or multipart as documented.",
)
UNAUTHENTICATED = register_problem_type(
    "unauthenticated", 401, "The API key is missing, unknown or revoked", "Send `Authorization: Bearer KEY`."
)
FORBIDDEN = register_problem_type(
    "forbidden", 403, "The key's role may not do this", "Use a key whose role may; see the access table."
)
NOT_FOUND = register_problem_type(
    "not_found", 404, "There is no such resource", "Check the path; foreign resources look absent too."
)
METHOD_NOT_ALLOWED = register_problem_type("method_not_allowed", 405, "The resource has no such method", "See `/docs`.")
ALREADY_EXISTS = register_problem_type("already_exists", 409, "A resource with this id exists", "Choose another id.")
PAYLOAD_TOO_LARGE = register_problem_type("payload_too_large", 413, "The body is over a limit", "Send less at once.")
UNSUPPORTED_MEDIA_TYPE = register_problem_type(
    "unsupported_media_type", 415, "The body's media type is not read here", "See `/docs` for the types."
)
IDEMPOTENCY_KEY_MISSING = register_problem_type(
    "idempotency_key_missing",
    400,
    "Creating requests need an Idempotency-Key",
    "Send a fresh random key per intention.",
)
IDEMPOTENCY_KEY_REUSED = register_problem_type(
    "idempotency_key_reused", 422, "The key was used with another payload", "Send a fresh key."
)
IDEMPOTENCY_IN_FLIGHT = register_problem_type(
    "idempotency_in_flight", 409, "The first request with this key is still running", "Try again in a moment."
)
INVALID_CURSOR = register_problem_type(
    "invalid_cursor", 400, "The page token is not one of this list", "Start again without `page_token`."
)
PRECONDITION_FAILED = register_problem_type(
    "precondition_failed", 412, "The model has another etag now", "Read the model again, then decide anew."
)
UNAVAILABLE = register_problem_type(
    "unavailable", 503, "The service cannot answer just now", "Try again after the seconds in `Retry-After`."
)
INTERNAL_ERROR = register_problem_type(
    "internal_error", 500, "The service failed", "Quote the request id to whoever runs the service."
)
