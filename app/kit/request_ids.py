"""Outermost layer of the application: ids, one log line per request, and a last catch for what nobody expected."""

from __future__ import annotations

import json
import re
import time
import traceback
from contextvars import ContextVar
from uuid import uuid4

import structlog
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.kit.logs import log
from app.kit.problems import INTERNAL_ERROR, MALFORMED_BODY, UNAVAILABLE, Problem

_REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
_SHOWN_FRAMES = 12
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def current_request_id() -> str:
    """Id of the request being answered, or an empty string outside one."""
    return _REQUEST_ID.get()


class RequestContext:
    """Gives each request an id (the caller's ``X-Request-Id`` if well-formed) and logs its end.

    The log names the route's template, not the path: paths hold the keys of samples.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        offered = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = offered.decode("ascii") if _ACCEPTED_ID.fullmatch(offered) else str(uuid4())
        _REQUEST_ID.set(request_id)
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                if "\0" in scope["path"] or b"%00" in scope["query_string"]:  # Postgres cannot hold it
                    await _answer(send_with_id, Problem(MALFORMED_BODY, "The URL holds a NUL character."), request_id)
                else:
                    await self.app(scope, receive, send_with_id)
            except (OperationalError, PoolTimeout) as error:
                log.warning("database_unavailable", error_type=type(error).__name__)
                problem = Problem(UNAVAILABLE, "The database does not answer in time.", headers={"Retry-After": "2"})
                if status == 0:
                    await _answer(send_with_id, problem, request_id)
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                # Neither the message nor the arguments are logged: both may repeat what was sent.
                log.error(
                    "unhandled_error",
                    error_type=f"{type(error).__module__}.{type(error).__qualname__}",
                    stack=[f"{at.filename}:{at.lineno} {at.name}" for at in frames[-_SHOWN_FRAMES:]],
                )
                if status == 0:
                    await _answer(
                        send_with_id,
                        Problem(INTERNAL_ERROR, "The failure was logged under the request id."),
                        request_id,
                    )
            finally:
                log.info(
                    "request",
                    method=scope["method"],
                    route=getattr(scope.get("route"), "path", None),
                    status=status,
                    seconds=round(time.perf_counter() - started, 4),
                )


async def _answer(send: Send, problem: Problem, request_id: str) -> None:
    body = json.dumps(problem.body(request_id)).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
    ]
    await send({"type": "http.response.start", "status": problem.type.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
