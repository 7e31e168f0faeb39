"""The whole service in one command: servers, schema, first key, API and worker, started and ended together."""

from app.serving.errors import ServingError
from app.serving.running import RunningRecord
from app.serving.service import RunningService, running_service
from app.serving.signals import StopSignals

__all__ = ["RunningRecord", "RunningService", "ServingError", "StopSignals", "running_service"]
