"""docs/insights.md names every kind, every member of a request, and every code of a refusal."""

from __future__ import annotations

import re
from pathlib import Path

from app.insights import service
from app.insights.schemas import MAX_TOP, InsightKind, InsightRequest

TEXT = (Path(__file__).parents[3] / "docs" / "insights.md").read_text(encoding="utf-8")


def test_every_kind_has_its_section() -> None:
    assert re.findall(r"^## `(\w+)`$", TEXT, re.MULTILINE) == [kind.value for kind in InsightKind]


def test_every_member_of_a_request_is_described() -> None:
    described = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", TEXT, re.MULTILINE)
    assert described == list(InsightRequest.model_fields)
    assert f"1 to {MAX_TOP}, {InsightRequest.model_fields['top'].default} if absent" in TEXT


def test_every_code_of_a_refusal_is_listed() -> None:
    source = Path(service.__file__).read_text(encoding="utf-8")
    codes = re.findall(r'_refused\("/\w+", "(\w+)"', source)
    assert len(codes) == 5
    for code in [*codes, "duplicate_kind"]:
        assert f"`{code}`" in TEXT
