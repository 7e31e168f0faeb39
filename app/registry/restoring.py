"""Asking for the return to an older version."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.artifacts import ArtifactStore
from app.edits import line
from app.edits.kinds import JobKind
from app.kit.etags import require_match
from app.kit.problems import Problem, register_problem_type
from app.registry.lineage import obstacle_to_restoring
from app.registry.lookup import VERSION_WITHDRAWN, get_version
from app.registry.schemas import RestoreRequest, etag_of
from app.tables import Job, Model

VERSION_IS_NEWEST = register_problem_type(
    "version_is_newest", 409, "The version is the newest already", "There is nothing to restore."
)
VERSION_HOLDS_ERASED_DATA = register_problem_type(
    "version_holds_erased_data",
    410,
    "The version was made with data that was erased",
    "Restore a version that came after the erasure.",
)
OBSTACLES = {type_.code: type_ for type_ in (VERSION_WITHDRAWN, VERSION_IS_NEWEST, VERSION_HOLDS_ERASED_DATA)}


def queue_restoration(
    session: Session,
    store: ArtifactStore,
    caller: Caller,
    model: Model,
    number: int,
    request: RestoreRequest,
    *,
    if_match: str | None,
) -> Job:
    """Put the restoration of version ``number`` into the model's line.

    Raises:
        Problem: ``not_found``, ``precondition_failed``, or one of :data:`OBSTACLES`.
    """
    version = get_version(session, model, number)
    require_match(if_match, etag_of(model))
    obstacle = obstacle_to_restoring(session, store, version, newest=model.latest_version)
    if obstacle is not None:
        raise Problem(OBSTACLES[obstacle.code], obstacle.detail)
    bound = None if if_match is None else model.latest_version
    return line.join(
        session,
        model_id=model.id,
        dataset_id=model.dataset_id,
        kind=JobKind.RESTORE,
        request={"version": number, "base_version": bound, **request.model_dump(mode="json")},
        created_by=caller.key_id,
        counts={"version": number},
    )
