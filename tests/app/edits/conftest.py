from __future__ import annotations

import pytest

from tests.app.service import Service
from tests.builders import build_key, build_ready_model


@pytest.fixture
def ready(service: Service) -> Service:
    """The service with ``digits-model`` at version 1; the first three rows are of the subjects ``s-0`` to ``s-2``."""
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0], subjects=("s-0", "s-1", "s-2"))
    return service
