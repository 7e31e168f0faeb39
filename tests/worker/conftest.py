from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings import Settings
from tests.worker.workshop import Workshop


@pytest.fixture
def settings(database_url: str, redis_url: str, tmp_path: Path) -> Settings:
    """Leases and sweeps of a tenth of the defaults, so that a test of a lost worker takes a second."""
    return Settings(
        data_dir=tmp_path / "data",
        database_url=database_url,
        redis_url=redis_url,
        device="cpu",
        queue_name="tests",
        lease_seconds=1.5,
        heartbeat_seconds=0.3,
        sweep_seconds=0.5,
    )


@pytest.fixture
def workshop(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    stage = tmp_path / "stage"
    stage.mkdir()
    monkeypatch.setenv("MODELMEND_TEST_STAGE", str(stage))
    workshop = Workshop(settings, stage)
    yield workshop
    workshop.close()
