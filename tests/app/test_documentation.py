"""The documents say what the service does: every route, problem type, code and ledger kind, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.access.rules import RULES, Permission, Role
from app.edits.findings import MESSAGES
from app.kit.problems import PROBLEM_TYPES
from app.ledger.kinds import LedgerKind
from app.main import create_app
from app.queueing import MemoryDoorbell
from app.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def application() -> FastAPI:
    settings = Settings(database_url="postgresql+psycopg://nobody@/nothing")
    return create_app(settings, doorbell=MemoryDoorbell())


def _rows(document: str, first_cell: str) -> list[str]:
    text = (DOCS / document).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if re.match(rf"\| `{first_cell}` \|", line)]


def test_routes(application: FastAPI) -> None:
    documented = {match[1] for row in _rows("api.md", "[A-Z]+ /.*?") if (match := re.match(r"\| `(.*?)`", row))}
    served = {f"{method.upper()} {path}" for path, item in application.openapi()["paths"].items() for method in item}
    assert documented == served


def test_routes_describe_themselves(application: FastAPI) -> None:
    for path, item in application.openapi()["paths"].items():
        for method, operation in item.items():
            place = f"{method} {path}"
            assert operation["summary"], place
            assert len(operation["tags"]) == 1, place
            failures = {status for status in operation["responses"] if status >= "400"}
            for status in failures:
                assert list(operation["responses"][status]["content"]) == ["application/problem+json"], place
            public = not operation.get("security")
            assert public is (path.split("/")[1] in {"healthz", "readyz", "problems"}), place
            assert public or {"401", "403"} <= failures, place


_TYPE = re.compile(r"\| `\w+` \| \d+ \|")


def test_problem_types() -> None:
    expected = {f"| `{t.code}` | {t.status} | {t.title} | {t.advice} |" for t in PROBLEM_TYPES.values()}
    assert {row for row in _rows("problems.md", r"\w+") if _TYPE.match(row)} == expected


def test_places_of_an_edit() -> None:
    expected = {f"| `{code.value}` | {message} |" for code, message in MESSAGES.items()}
    assert {row for row in _rows("problems.md", r"\w+") if not _TYPE.match(row)} == expected


def test_ledger_kinds() -> None:
    assert _rows("api.md", r"[a-z_]+\.[a-z_]+") == [f"| `{kind.value}` | {kind.description} |" for kind in LedgerKind]


def test_the_table_of_roles() -> None:
    columns = (
        Permission.READ,
        Permission.AUDIT,
        Permission.CREATE,
        Permission.EDIT,
        Permission.MOVE_ALIAS,
        Permission.MANAGE_KEYS,
    )
    assert set(columns) == set(Permission)
    expected = [
        f"| `{role.value}` | " + " | ".join("yes" if column in RULES[role] else "no" for column in columns) + " |"
        for role in Role
    ]
    assert _rows("api.md", "(?:client|auditor|compliance|admin)") == expected
