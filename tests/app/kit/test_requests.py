from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.database import make_engine, make_sessions
from tests.app.service import Service, problem, running_service


def test_unknown_paths_and_methods_are_problems(unchanged: Service) -> None:
    problem(unchanged.get("/nothing/here"), 404, "not_found")
    refused = unchanged.post("/healthz")
    problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "GET"


def test_a_request_id_is_echoed_only_when_well_formed(unchanged: Service) -> None:
    given = unchanged.client.get("/healthz", headers={"X-Request-Id": "run-7.a"})
    assert given.headers["x-request-id"] == "run-7.a"
    refused = unchanged.client.get("/healthz", headers={"X-Request-Id": 'x" y'})
    assert len(refused.headers["x-request-id"]) == 36


def test_readiness_names_the_schema(unchanged: Service) -> None:
    assert unchanged.get("/readyz").json() == {"status": "ready", "schema": "0003"}


def test_readiness_fails_with_the_database(database_url: str, tmp_path: Path) -> None:
    with running_service(database_url, tmp_path) as service:
        service.services.engine.dispose()
        object.__setattr__(service.services, "sessions", _no_database())
        answer = service.client.get("/readyz")
        assert problem(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "2"
        assert service.client.get("/healthz").status_code == 200
        problem(service.get("/models"), 503, "unavailable")


def _no_database() -> sessionmaker[Session]:
    return make_sessions(make_engine("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=1"))


@pytest.mark.parametrize(
    "text",
    [
        b'{"name": NaN}',
        b'{"name": "a", "name": "b"}',
        b'{"name": "a", "n\\u0061me": "b"}',
        b'{"name": Infinity}',
        b'{"name": 1e999}',
        b'{"name": "\\u0000"}',
        b'{"name": "\\ud800"}',
        b'{"name": "\xff"}',
        b"{",
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
def test_json_that_is_not_strict_is_malformed(unchanged: Service, text: bytes) -> None:
    answer = unchanged.post("/api-keys", content=text, headers={"Content-Type": "application/json"})
    problem(answer, 400, "malformed_body")


def test_nul_in_a_url_is_malformed(unchanged: Service) -> None:
    problem(unchanged.get("/models/a%00b"), 400, "malformed_body")
    problem(unchanged.get("/models?page_token=%00"), 400, "malformed_body")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "application/xml"])
def test_other_media_types_are_refused(unchanged: Service, media_type: str) -> None:
    answer = unchanged.post("/api-keys", content=b"{}", headers={"Content-Type": media_type})
    problem(answer, 415, "unsupported_media_type")


def test_invalid_fields_are_pointed_at_and_never_repeated(unchanged: Service) -> None:
    body = {"name": "", "role": "SECRET-ROLE", "models": ["ok", "SECRET MODEL"], "extra": "SECRET-EXTRA"}
    answer = unchanged.post("/api-keys", body)
    found = {error["pointer"]: error["code"] for error in problem(answer, 422, "invalid_request")["errors"]}
    assert found == {
        "/name": "string_too_short",
        "/role": "literal_error",
        "/models/1": "string_pattern_mismatch",
        "/extra": "unknown_field",
    }
    assert "SECRET" not in answer.text


def test_invalid_parameters_are_named(unchanged: Service) -> None:
    errors = problem(unchanged.get("/models?page_size=none"), 422, "invalid_request")["errors"]
    assert [(error["parameter"], error["code"]) for error in errors] == [("page_size", "int_parsing")]
    assert "none" not in str(errors)


class TestBodyLimits:
    @pytest.fixture
    def small(self, database_url: str, tmp_path: Path) -> Iterator[Service]:
        with running_service(database_url, tmp_path, max_request_bytes=100, max_upload_bytes=1000) as running:
            yield running

    def test_announced_length(self, small: Service) -> None:
        problem(small.post("/api-keys", {"name": "x" * 200}), 413, "payload_too_large")

    def test_chunked_without_a_length(self, small: Service) -> None:
        read = 0

        def chunks() -> Iterator[bytes]:
            nonlocal read
            for _ in range(50):
                read += 1
                yield b" " * 30

        answer = small.post("/api-keys", content=chunks(), headers={"Content-Type": "application/json"})
        problem(answer, 413, "payload_too_large")

    def test_multipart_has_its_own_limit(self, small: Service) -> None:
        answer = small.post("/api-keys", files={"file": b"x" * 400})
        problem(answer, 415, "unsupported_media_type")
        problem(small.post("/api-keys", files={"file": b"x" * 1500}), 413, "payload_too_large")


def test_a_body_is_refused_before_it_is_read_when_nobody_sent_it(unchanged: Service) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"{}"

    answer = unchanged.client.post("/api-keys", content=chunks(), headers={"Content-Type": "application/json"})
    problem(answer, 401, "unauthenticated")


def test_an_unexpected_failure_is_a_problem_and_its_log_holds_no_values(
    unchanged: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("SECRET")

    monkeypatch.setattr("app.access.routes.create_key", broken)
    capsys.readouterr()
    body = problem(unchanged.post("/api-keys", {"name": "a", "role": "admin"}), 500, "internal_error")
    logged = capsys.readouterr().err
    assert "unhandled_error" in logged
    assert body["request_id"] in logged
    assert "RuntimeError" in logged
    assert "SECRET" not in logged


def test_logs_name_the_route_and_not_the_path(unchanged: Service, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    unchanged.get("/models/someones-name")
    logged = capsys.readouterr().err
    assert '"/models/{model_id}"' in logged
    assert "someones-name" not in logged
