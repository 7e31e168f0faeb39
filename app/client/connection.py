"""Requests, sent again where that is safe, and answers told apart from problems."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from uuid import uuid4

import httpx
from pydantic import TypeAdapter

from app.client.errors import ClientError, ProblemError, ServiceUnreachable
from app.client.resources import Resource

ATTEMPTS = 5
FIRST_PAUSE = 0.2  # seconds, doubled each time: 3 s in all, in which an API process can restart
LONGEST_PAUSE = 5.0
_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})
_ASK_AGAIN = {(503, "unavailable"), (409, "idempotency_in_flight")}

_LIST = TypeAdapter(list[Any])

Kind = TypeVar("Kind", bound=Resource)


@dataclass(frozen=True)
class Stream:
    """A file that is made while it is sent: ``chunks`` is called anew for every attempt and gives the same bytes."""

    name: str
    chunks: Callable[[], Iterator[bytes]]


Content = bytes | Path | Stream
Part = tuple[str, str, Content]  # name of the field, name of the file, content


class Connection:
    """One service, one key."""

    def __init__(self, url: str, key: str | None, *, timeout: float, transport: httpx.BaseTransport | None) -> None:
        self.url = url.rstrip("/")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            if transport is None and httpx.URL(self.url).host in _THIS_MACHINE:
                transport = httpx.HTTPTransport()  # a proxy named in the environment does not lead here
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, transport=transport)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ClientError(f"The address or the key is not well-formed: {error}.") from error

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> httpx.Response:
        """GET; parameters that are None are left out."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        return self._send("GET", path, params=given)

    def text(self, path: str) -> str:
        """GET of what is text, not JSON."""
        answer = self.get(path)
        with _understanding(answer):
            return answer.content.decode("utf-8")

    def download(self, path: str, target: Path) -> None:
        """GET into a file, in pieces. ``target`` appears, or is replaced, only when all of it is there."""
        part = target.with_name(f".{target.name}.{uuid4().hex}")
        try:
            self._send("GET", path, target=part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def put(self, path: str, json: Mapping[str, Any]) -> httpx.Response:
        return self._send("PUT", path, json=json)

    def act(self, path: str, json: Mapping[str, Any] | None = None, *, repeatable: bool = True) -> httpx.Response:
        """POST without an Idempotency-Key; ``repeatable`` says that doing it twice is like doing it once."""
        return self._send("POST", path, repeatable=repeatable, json=json)

    def create(
        self,
        path: str,
        json: Mapping[str, Any] | None = None,
        *,
        parts: Sequence[Part] = (),
        data: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        if_match: str | None = None,
    ) -> httpx.Response:
        """POST with one Idempotency-Key for all attempts, so that a lost answer is no reason to create twice."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        if if_match is not None:
            headers["If-Match"] = if_match
        return self._send("POST", path, parts=parts, json=json, data=data, params=params, headers=headers)

    def _send(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool = True,
        parts: Sequence[Part] = (),
        target: Path | None = None,
        **content: Any,
    ) -> httpx.Response:
        attempts = ATTEMPTS if repeatable else 1
        for attempt in range(1, attempts + 1):
            last = attempt == attempts
            pause = FIRST_PAUSE * 2 ** (attempt - 1)
            try:
                response = (
                    self._send_once(method, path, parts, content)
                    if target is None
                    else self._receive_once(method, path, target, content)
                )
            except httpx.TransportError as error:
                if last or isinstance(error, httpx.UnsupportedProtocol):
                    raise ServiceUnreachable(
                        f"{self.url} does not answer ({_cause(error)}). Is `modelmend serve` running there?"
                    ) from error
            else:
                if response.is_success:
                    return response
                problem = _problem(response)
                if last or (problem.status, problem.code) not in _ASK_AGAIN:
                    raise problem
                pause = _retry_after(response, pause)
            time.sleep(min(pause, LONGEST_PAUSE))
        raise AssertionError("unreachable")

    def _send_once(self, method: str, path: str, parts: Sequence[Part], content: Mapping[str, Any]) -> httpx.Response:
        with ExitStack() as open_files:
            files = [
                (name, (filename, body if isinstance(body, bytes) else open_files.enter_context(_opened(body))))
                for name, filename, body in parts
            ]
            return self._http.request(method, path, files=files or None, **content)

    def _receive_once(self, method: str, path: str, target: Path, content: Mapping[str, Any]) -> httpx.Response:
        with self._http.stream(method, path, **content) as response:
            if not response.is_success:
                response.read()
                return response
            with target.open("wb") as file:
                for chunk in response.iter_bytes():
                    file.write(chunk)
            return response


def _opened(body: Path | Stream) -> IO[bytes]:
    return body.open("rb") if isinstance(body, Path) else io.BufferedReader(_Chunks(body.chunks()))


class _Chunks(io.RawIOBase):
    """Reads what an iterator gives. Its length is not known, so the body goes in chunks of no announced sum."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def resource_of(response: httpx.Response, kind: type[Kind]) -> Kind:
    """The resource in a successful answer."""
    with _understanding(response):
        return kind.model_validate_json(response.content)


def listed_in(response: httpx.Response, member: str, kind: type[Kind]) -> tuple[list[Kind], str | None]:
    """The resources under ``member`` of a successful answer, and the token of the next page."""
    with _understanding(response):
        body = response.json()
        items = _LIST.validate_python(body[member])
        return [kind.model_validate(item) for item in items], body.get("next_page_token")


@contextmanager
def _understanding(response: httpx.Response) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ServiceUnreachable(f"What answers at {response.url} is not this service, or a newer one.") from error


def _problem(response: httpx.Response) -> ProblemError:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {"title": f"The answer was {response.status_code} {response.reason_phrase}", "code": "no_problem"}
    return ProblemError(response.status_code, body)


def _retry_after(response: httpx.Response, default: float) -> float:
    try:
        return float(response.headers.get("Retry-After", default))
    except ValueError:  # a date
        return default


def _cause(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
