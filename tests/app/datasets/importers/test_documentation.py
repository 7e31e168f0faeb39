"""docs/datasets.md states the rules that the importers follow."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from app.cli import cli
from app.datasets.importers import derm7pt, splits, tables
from app.datasets.importers.layouts import Layout

TEXT = (Path(__file__).parents[4] / "docs" / "datasets.md").read_text(encoding="utf-8")


def cells(first: str) -> list[list[str]]:
    rows = [line for line in TEXT.splitlines() if re.match(rf"\| `{first}` \|", line)]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_layout_has_its_row_and_its_section() -> None:
    for layout in Layout:
        assert len(cells(layout.value)) == 1
        assert f"\n## `{layout.value}`: " in TEXT


def test_every_option_is_explained() -> None:
    command = typer.main.get_command(cli).commands["datasets"].commands["import"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    unexplained = {name for name in options if not re.search(rf"{name}\b", TEXT)}
    assert unexplained == {"--url", "--key", "--data"}  # README's part
    assert set(re.findall(r"`(--[a-z-]+)", TEXT)) <= options


def test_the_criteria_of_derm7pt() -> None:
    for name, (without, scoring) in derm7pt.CRITERIA.items():
        ((_, ones, zeros),) = cells(name)
        assert (frozenset(ones.split(", ")), frozenset(zeros.split(", "))) == (scoring, without)


def test_the_numbers_of_splits_and_tables() -> None:
    assert (splits.CALIBRATION_SHARE, splits.TEST_SHARE) == (0.2, 0.2)
    assert "| `oai` and `folder` without a split | subject, or key where there is none | between | below 0.2 |" in TEXT
    ((_, default, _),) = cells("--concepts")
    assert default == f"`{','.join(tables.OAI_CONCEPTS)}`"
    ((_, threshold, _),) = cells("--threshold")
    assert threshold == f"`{tables.THRESHOLD:g}`"
