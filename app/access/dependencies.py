"""Authentication of requests. A body is read only after its sender is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.callers import Caller
from app.access.keys import caller_of
from app.access.rules import Permission
from app.kit.context import services_of
from app.kit.problem_handlers import problem_response
from app.kit.problems import UNAUTHENTICATED, Problem

_bearer = HTTPBearer(auto_error=False, description="An API key.", scheme_name="API key")


def authenticate(request: Request) -> Caller:
    """The caller of ``request``.

    Raises:
        Problem: ``unauthenticated``, alike for missing, malformed, unknown and revoked keys.
    """
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            with services_of(request).sessions.begin() as session:
                caller = caller_of(session, text.strip())
        if caller is None:
            raise Problem(
                UNAUTHENTICATED, "No valid API key came with the request.", headers={"WWW-Authenticate": "Bearer"}
            )
        request.state.caller = caller
    return caller


class AuthenticateBodies:
    """Refuses requests with a body from unknown callers before the body is read: FastAPI would read it first."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD", "OPTIONS"}:
            try:
                await run_in_threadpool(authenticate, Request(scope))
            except Problem as problem:
                await problem_response(problem)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _caller_who_may(permission: Permission) -> Callable[..., Caller]:
    def caller_who_may(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
    ) -> Caller:
        caller = authenticate(request)
        caller.require(permission)
        return caller

    return caller_who_may


Reader = Annotated[Caller, Depends(_caller_who_may(Permission.READ))]
Auditor = Annotated[Caller, Depends(_caller_who_may(Permission.AUDIT))]
Creator = Annotated[Caller, Depends(_caller_who_may(Permission.CREATE))]
Editor = Annotated[Caller, Depends(_caller_who_may(Permission.EDIT))]
AliasMover = Annotated[Caller, Depends(_caller_who_may(Permission.MOVE_ALIAS))]
KeyManager = Annotated[Caller, Depends(_caller_who_may(Permission.MANAGE_KEYS))]
