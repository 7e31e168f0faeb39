"""The service under test: the real application on a real database, without a socket."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import uuid4

from httpx import Response
from sqlalchemy.orm import Session, sessionmaker

with warnings.catch_warnings():
    # Starlette asks for a successor of httpx that has no release we depend on.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from app.access.rules import Role
from app.artifacts import ArtifactStore
from app.kit.context import Services
from app.main import create_app
from app.queueing import MemoryDoorbell
from app.settings import Settings
from tests.builders import build_key


@dataclass(frozen=True)
class Service:
    """A client with an administrator's key, and what stands behind the application."""

    client: TestClient
    services: Services
    doorbell: MemoryDoorbell
    key: str

    @property
    def sessions(self) -> sessionmaker[Session]:
        return self.services.sessions

    @property
    def store(self) -> ArtifactStore:
        return self.services.store

    def key_of(self, role: Role, *, models: list[str] | None = None) -> str:
        """Text of a new key."""
        with self.sessions.begin() as session:
            return build_key(session, role, models=models)[1]

    def get(self, path: str, *, key: str | None = None, **arguments: Any) -> Response:
        return cast(Response, self.client.get(path, headers=self._headers(key), **arguments))

    def post(
        self,
        path: str,
        json: Any = None,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        headers: dict[str, str] | None = None,
        **arguments: Any,
    ) -> Response:
        """POST with a fresh Idempotency-Key unless one is given."""
        sent = {"Idempotency-Key": idempotency_key or str(uuid4()), **self._headers(key), **(headers or {})}
        return cast(Response, self.client.post(path, json=json, headers=sent, **arguments))

    def put(self, path: str, json: Any, *, key: str | None = None) -> Response:
        return cast(Response, self.client.put(path, json=json, headers=self._headers(key)))

    def _headers(self, key: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key or self.key}"}


@contextmanager
def running_service(database_url: str, data_dir: Path, **settings: Any) -> Iterator[Service]:
    """The application over ``database_url``, with artifacts in ``data_dir``."""
    doorbell = MemoryDoorbell()
    # Beside the data and not in it: tests count the files of the store.
    settings = {
        f"{name}_dir": data_dir.with_name(f"{data_dir.name}-{name}") for name in ("signing", "checkpoint")
    } | settings
    app = create_app(Settings(database_url=database_url, data_dir=data_dir, **settings), doorbell=doorbell)
    services: Services = app.state.services
    with services.sessions.begin() as session:
        _, text = build_key(session)
    with TestClient(app, raise_server_exceptions=True) as client:
        yield Service(client, services, doorbell, text)


class Answer(Protocol):
    """What is asked of a response, whichever HTTP library Starlette's client has found to make it."""

    @property
    def status_code(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    def json(self) -> Any: ...


def problem(response: Answer, status: int, code: str) -> dict[str, Any]:
    """The problem in ``response``, after checking that it is that one."""
    assert (response.status_code, response.json().get("code")) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["request_id"] == response.headers["x-request-id"]
    assert body["type"] == f"/problems/{code}"
    return body
