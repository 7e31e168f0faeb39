"""The README's tables say what there is: every setting, every command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from app.cli import cli
from app.settings import Settings

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def rows(first_cell: str) -> list[str]:
    return [line for line in README.splitlines() if re.match(rf"\| `{first_cell}` \|", line)]


def test_settings() -> None:
    expected = [
        f"| `MODELMEND_{name.upper()}` | {'unset' if field.default is None else f'`{field.default}`'} "
        f"| {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    assert rows(r"MODELMEND_\w+") == expected


def commands(command: Any, name: str) -> list[str]:
    """Args: ``command`` is of click's classes, which some releases of typer bring along under a name of their own."""
    if hasattr(command, "commands"):
        return [line for below in command.commands.values() for line in commands(below, f"{name} {below.name}")]
    return [f"| `{name}` | {' '.join((command.help or '').split())} |"]


def test_commands() -> None:
    assert rows(r"modelmend [a-z -]+") == commands(typer.main.get_command(cli), "modelmend")
