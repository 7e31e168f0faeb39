"""The router every room uses: strict JSON, and 415 for a media type that the route does not read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any

from fastapi import APIRouter, Request, Response, params
from fastapi.routing import APIRoute

from app.kit import strict_json
from app.kit.problems import MALFORMED_BODY, UNSUPPORTED_MEDIA_TYPE, Problem


class _StrictRequest(Request):
    """A request whose JSON was parsed by our own rules."""

    _parsed: Any = None

    async def parse(self) -> None:
        body = await self.body()
        if body:
            try:
                self._parsed = strict_json.parse(body)
            except strict_json.NotStrictJson as error:
                raise Problem(MALFORMED_BODY, "The body is not strict JSON in UTF-8.") from error

    async def json(self) -> Any:
        return self._parsed


class StrictRoute(APIRoute):
    """Checks media type and JSON before FastAPI's own parsing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        field = self.body_field
        form = field is not None and isinstance(field.field_info, params.Form)

        async def handle(request: Request) -> Response:
            if field is None:
                return await inner(request)
            media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if form:
                if media_type != "multipart/form-data":
                    raise Problem(UNSUPPORTED_MEDIA_TYPE, "Send multipart/form-data.")
                return await inner(request)
            strict = _StrictRequest(request.scope, request.receive)
            if media_type != "application/json" and (media_type or await strict.body()):
                raise Problem(UNSUPPORTED_MEDIA_TYPE, "Send application/json.")
            await strict.parse()
            return await inner(strict)

        return handle


def make_router(tag: str) -> APIRouter:
    """A router whose routes are listed under ``tag`` in the documentation."""
    tags: list[str | Enum] = [tag]
    return APIRouter(tags=tags, route_class=StrictRoute)
