"""What a route needs from the process it runs in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from app.artifacts import ArtifactStore
from app.ledger.publishing import CheckpointPublisher
from app.queueing.doorbell import Doorbell
from app.settings import Settings


@dataclass(frozen=True)
class Services:
    """Everything with a life as long as the application's. A route opens its own transaction on ``sessions``."""

    settings: Settings
    engine: Engine
    sessions: sessionmaker[Session]
    store: ArtifactStore
    doorbell: Doorbell
    checkpoints: CheckpointPublisher


def services_of(request: Request) -> Services:
    """The services that ``create_app`` put into the application's state."""
    services = request.app.state.services
    assert isinstance(services, Services)  # noqa: S101 (set by create_app)
    return services


ServicesDep = Annotated[Services, Depends(services_of)]
