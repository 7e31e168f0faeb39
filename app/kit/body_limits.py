"""Refuse large bodies before reading them, also when their length was not announced."""

from __future__ import annotations

from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.kit.problem_handlers import problem_response
from app.kit.problems import PAYLOAD_TOO_LARGE, Problem


class BodyTooLarge(Exception):
    """More bytes arrived than the limit allows."""


class BodyLimits:
    """Limits of a request's body in bytes: one for multipart, one for everything else."""

    def __init__(self, app: ASGIApp, *, max_request_bytes: int, max_upload_bytes: int) -> None:
        self.app = app
        self.max_request_bytes = max_request_bytes
        self.max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        multipart = headers.get(b"content-type", b"").lower().startswith(b"multipart/")
        limit = self.max_upload_bytes if multipart else self.max_request_bytes
        refusal = problem_response(
            Problem(PAYLOAD_TOO_LARGE, f"A body may have at most {limit} bytes here.", headers={"Connection": "close"})
        )
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced[:20]) > limit:
            await refusal(scope, receive, send)
            return

        read = 0
        exceeded = started = False

        async def counted() -> Message:
            nonlocal read, exceeded
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                exceeded = True
                raise BodyTooLarge
            return message

        async def send_unless_exceeded(message: Message) -> None:
            # Parsers turn the exception into answers of their own (400); those are replaced.
            nonlocal started
            if not exceeded or started:
                started = True
                await send(message)

        with suppress(BodyTooLarge):
            await self.app(scope, counted, send_unless_exceeded)
        if exceeded and not started:
            await refusal(scope, receive, send)
