from __future__ import annotations

import pytest

from tests.app.service import Service
from tests.builders import build_key, build_ready_model, build_version


@pytest.fixture
def ready(service: Service) -> Service:
    """The service with ``digits-model`` at version 2, the child of version 1."""
    with service.sessions.begin() as session:
        model = build_ready_model(session, service.store, build_key(session)[0])
        build_version(session, service.store, model)
    return service
