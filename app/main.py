"""The application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from app.access import routes as access
from app.access.dependencies import AuthenticateBodies
from app.artifacts import ArtifactStore, open_store
from app.database import make_engine, make_sessions
from app.datasets import routes as datasets
from app.edits import routes as edits
from app.insights import routes as insights
from app.kit import routes as kit
from app.kit.body_limits import BodyLimits
from app.kit.context import Services
from app.kit.logs import configure_logging
from app.kit.problem_handlers import install_problem_handlers
from app.kit.request_ids import RequestContext
from app.ledger import routes as ledger
from app.ledger.publishing import CheckpointClock, CheckpointPublisher
from app.queueing import Doorbell, RqDoorbell
from app.registry import routes as registry
from app.settings import Settings
from app.uploads import routes as uploads


def create_app(
    settings: Settings | None = None, *, store: ArtifactStore | None = None, doorbell: Doorbell | None = None
) -> FastAPI:
    """The HTTP service over an already migrated database.

    Args:
        settings: read from the environment when absent; ``database_url`` must be set.
        store: opened from the settings when absent.
        doorbell: rings through ``redis_url`` when absent.

    Raises:
        ValueError: a needed URL is not set.
    """
    settings = settings or Settings()
    if settings.database_url is None:
        raise ValueError("database_url is not set: start the embedded servers first, or set MODELMEND_DATABASE_URL")
    if doorbell is None:
        if settings.redis_url is None:
            raise ValueError("redis_url is not set: start the embedded servers first, or set MODELMEND_REDIS_URL")
        doorbell = RqDoorbell(settings.redis_url, settings.queue_name)
    configure_logging()
    engine = make_engine(settings.database_url)
    sessions = make_sessions(engine)
    checkpoints = CheckpointPublisher.of(settings)
    services = Services(settings, engine, sessions, store or open_store(settings), doorbell, checkpoints)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        clock = CheckpointClock(checkpoints, sessions, settings)
        clock.start()
        yield
        clock.stop()
        engine.dispose()
        if isinstance(doorbell, RqDoorbell):
            doorbell.close()

    app = FastAPI(
        title="modelmend",
        summary="Edit trained concept bottleneck models instead of retraining them.",
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,  # one address for each resource; the other answers 404 as a problem
    )
    app.state.services = services
    install_problem_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(AuthenticateBodies)
    app.add_middleware(
        BodyLimits, max_request_bytes=settings.max_request_bytes, max_upload_bytes=settings.max_upload_bytes
    )
    app.add_middleware(RequestContext)
    for room in (kit, access, datasets, uploads, registry, edits, insights, ledger):
        app.include_router(room.router)
    return app
