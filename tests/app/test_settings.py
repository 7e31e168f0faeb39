"""Settings come from arguments, then the environment, then files."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import SECRETS_DIR, Settings

DATABASE_URL = "postgresql+psycopg://service:secret@postgres/modelmend"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MODELMEND_{name.upper()}", raising=False)
    monkeypatch.setenv(SECRETS_DIR, str(tmp_path))
    return tmp_path


def test_a_file_stands_for_a_variable(secrets: Path) -> None:
    (secrets / "modelmend_database_url").write_text(f"{DATABASE_URL}\n")
    (secrets / "somebody_elses").write_text("not ours")
    settings = Settings()
    assert settings.database_url == DATABASE_URL  # without the line's end
    assert settings.redis_url is None


def test_the_environment_wins_over_a_file(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "modelmend_port").write_text("1")
    assert Settings().port == 1
    monkeypatch.setenv("MODELMEND_PORT", "2")
    assert Settings().port == 2
    assert Settings(port=3).port == 3


def test_no_directory_of_files_is_needed(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRETS_DIR, str(secrets / "nothing"))  # warnings are errors here
    assert Settings().database_url is None
