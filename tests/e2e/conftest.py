from __future__ import annotations

from tests.worker.conftest import settings, workshop

__all__ = ["settings", "workshop"]
