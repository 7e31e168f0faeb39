from __future__ import annotations

import base64
import json

import pytest

from app.kit.pagination import decode_cursor, encode_cursor
from app.kit.problems import Problem
from tests.app.service import Service, problem


def _token(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


@pytest.mark.parametrize("after", [0, 2**63 - 1, "img-1", "ünï/+ code"])
def test_a_cursor_survives_the_round_trip(after: int | str) -> None:
    assert decode_cursor(encode_cursor("edits", after), "edits", type(after)) == after


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "====",
        "%%%",
        _token([]),
        _token({"a": 1}),
        _token(7),
        _token(["edits", 1]),
        encode_cursor("jobs", 1),
        encode_cursor("edits", "1"),
        encode_cursor("edits", -1),
        encode_cursor("edits", 2**63),
        encode_cursor("edits", True),
        encode_cursor("edits", 1) + "=",
        encode_cursor("edits", 1)[:-1],
        " " + encode_cursor("edits", 1),
        "A" * 5000,
    ],
)
def test_anything_else_is_refused(token: str) -> None:
    with pytest.raises(Problem) as refused:
        decode_cursor(token, "edits", int)
    assert refused.value.type.code == "invalid_cursor"


def test_pages_cover_a_list_once_and_sizes_are_lowered(service: Service) -> None:
    for number in range(5):
        assert service.post("/api-keys", {"name": f"k{number}", "role": "auditor"}).status_code == 201
    seen: list[str] = []
    token = None
    while True:
        page = service.get("/api-keys", params={"page_size": 2, **({"page_token": token} if token else {})}).json()
        assert len(page["api_keys"]) <= 2
        seen += [key["id"] for key in page["api_keys"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert len(seen) == len(set(seen)) == 6
    assert len(service.get("/api-keys?page_size=100000").json()["api_keys"]) == 6
    problem(service.get("/api-keys?page_size=0"), 422, "invalid_request")
    problem(service.get("/models", params={"page_token": "abc"}), 400, "invalid_cursor")
