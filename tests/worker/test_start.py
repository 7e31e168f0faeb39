from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import worker.__main__ as program

PROJECT = Path(__file__).parents[2]


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MODELMEND_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        env=clean | (environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_parent_imports_neither_torch_nor_the_http_side() -> None:
    heavy = ("torch", "fastapi", "pyarrow", "PIL", "alembic")
    found = run("-c", f"import sys, worker.main; print([name for name in {heavy} if name in sys.modules])")
    assert found.stdout.strip() == "[]", found.stderr


def test_a_worker_without_servers_says_what_to_set() -> None:
    found = run("-m", "worker", environment={"MODELMEND_REDIS_URL": "unix:///nowhere"})
    assert found.returncode == 1
    assert "MODELMEND_DATABASE_URL" in found.stderr
    assert "Traceback" not in found.stderr


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_spec", lambda _: None)
    assert program.main() == 1
    assert "modelmend[worker]" in capsys.readouterr().err
