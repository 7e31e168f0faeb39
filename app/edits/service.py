"""Asking for work on a model, and calling it off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.artifacts import ArtifactStore
from app.datasets.additions import NewSample as NewItem
from app.datasets.additions import stage_added_samples
from app.datasets.settlement import discard_added_samples
from app.edits import line
from app.edits.findings import Code, Finding
from app.edits.kinds import JobKind
from app.edits.resolution import Resolution, examine
from app.edits.schemas import AddSamples, EditRequest, FactorsRequest, NewSample, RetrainingRequest
from app.edits.states import FINAL, JobState, require_transition
from app.kit.etags import require_match
from app.kit.problem_handlers import MAX_ERRORS, places_detail
from app.kit.problems import INVALID_REQUEST, NOT_FOUND, Problem, register_problem_type
from app.registry.lookup import newest_version
from app.registry.schemas import etag_of
from app.tables import Dataset, Job, Model, Version

INVALID_EDIT = register_problem_type(
    "invalid_edit",
    422,
    "The edit does not fit the newest version",
    "Correct each place that `errors` points at, or wait for the edits queued before this one.",
)
BASE_VERSION_CHANGED = register_problem_type(
    "base_version_changed", 409, "Another version is the newest", "Read the model again, then decide anew."
)
FACTORS_NOT_NEEDED = register_problem_type(
    "factors_not_needed",
    409,
    "The model needs no curvature factors",
    "Edit it as it is: where the backbone is frozen, edits are exact without them.",
)
JOB_FINISHED = register_problem_type("job_finished", 409, "The job has ended already", "Read the job for its result.")


def check_edit(
    session: Session,
    store: ArtifactStore,
    caller: Caller,
    model: Model,
    request: EditRequest,
    *,
    if_match: str | None,
    max_items: int,
) -> tuple[Version, Resolution]:
    """The newest version and what the edit means for it.

    Raises:
        Problem: ``model_has_no_version``, ``precondition_failed``, ``base_version_changed`` or ``invalid_edit``.
    """
    version = newest_version(session, model)
    require_match(if_match, etag_of(model))
    if request.base_version not in (None, version.number):
        raise Problem(BASE_VERSION_CHANGED, f"Version {version.number} is the newest.")
    if request.items() > max_items:
        raise _invalid_edit([Finding("/operations", Code.TOO_MANY_ITEMS)])
    resolution = examine(session, store, request, version, model.dataset_id, caller_id=caller.key_id)
    if resolution.findings:
        raise _invalid_edit(resolution.findings)
    return version, resolution


def queue_edit(
    session: Session,
    store: ArtifactStore,
    caller: Caller,
    model: Model,
    request: EditRequest,
    *,
    checked: tuple[Version, Resolution],
    bind: int | None,
    kind: JobKind = JobKind.EDIT,
) -> Job:
    """Put an edit or its preview, ``checked`` before, into the line and stage the rows it adds.

    ``bind`` is the base version that the caller insists on.
    """
    version, resolution = checked
    job = line.join(
        session,
        model_id=model.id,
        dataset_id=model.dataset_id,
        kind=kind,
        request=request.model_copy(update={"base_version": bind}).model_dump(mode="json", by_alias=True),
        created_by=caller.key_id,
        counts={
            "operations": [operation.op for operation in request.operations],
            "counts": resolution.counts,
            "concepts_dropped": [version.concepts[column] for column in resolution.changes.dropped],
            "concepts_added": [concept.name for concept in resolution.changes.new],
            "options": request.options.model_dump(mode="json"),
        },
    )
    added = [sample for _, operation in request.named(AddSamples) for sample in operation.samples]
    if added:
        dataset = session.get_one(Dataset, model.dataset_id)
        items = [_item(sample, dataset) for sample in added]
        stage_added_samples(session, store, dataset, items, job.id, provisional=kind is JobKind.PREVIEW)
    return job


def queue_work(
    session: Session, caller: Caller, model: Model, kind: JobKind, request: FactorsRequest | RetrainingRequest
) -> Job:
    """Queue a fit of factors, or a retraining.

    Raises:
        Problem: ``model_has_no_version``, ``factors_not_needed`` for a model with a frozen backbone, or
            ``invalid_request`` for a version that there is not.
    """
    newest_version(session, model)
    if kind is JobKind.FIT_FACTORS and model.training.get("frozen_backbone", False):
        raise Problem(FACTORS_NOT_NEEDED, "The model's backbone is frozen.")
    if request.version is not None:
        version = session.get(Version, (model.id, request.version))
        if version is None or version.state != "ready":
            error = {"pointer": "/version", "code": "unknown_version", "message": "No such version is ready."}
            raise Problem(INVALID_REQUEST, places_detail(1), errors=[error])
    return line.join(
        session,
        model_id=model.id,
        dataset_id=model.dataset_id,
        kind=kind,
        request=request.model_dump(mode="json"),
        created_by=caller.key_id,
        counts=request.model_dump(mode="json"),
    )


def get_job(session: Session, model: Model, job_id: str, *, kind: JobKind | None = None, lock: bool = False) -> Job:
    """Raises ``not_found``, also for text that is no id at all."""
    key = _uuid(job_id)
    job = None if key is None else session.get(Job, key, with_for_update=lock or None)
    if job is None or job.model_id != model.id or (kind is not None and job.kind != kind):
        raise Problem(NOT_FOUND, "The model has no such job.")
    return job


def cancel(session: Session, store: ArtifactStore, caller: Caller, job: Job) -> None:
    """Cancel a queued job at once; ask the worker of a running one to stop. ``job`` must be locked.

    Raises:
        Problem: ``job_finished`` when it has succeeded or failed.
    """
    state = JobState(job.state)
    if state is JobState.CANCELLED:
        return
    if state in FINAL:
        raise Problem(JOB_FINISHED, f"The job has {state}.")
    if state is JobState.RUNNING:
        job.cancel_requested = True
        session.flush()
        return
    require_transition(state, JobState.CANCELLED)
    job.state = JobState.CANCELLED.value
    job.finished_at = session.execute(select(func.now())).scalar_one()
    session.flush()
    discard_added_samples(session, store, job.id)
    line.record(session, job, "cancelled", actor_ref=caller.actor_ref)


def _item(sample: NewSample, dataset: Dataset) -> NewItem:
    """A row to stage. Labels of concepts that only the model has stay in the request, and then in its snapshots."""
    item = sample.model_dump(by_alias=True)
    known = {name: label for name, label in sample.concepts.items() if name in dataset.concepts}
    return cast(NewItem, {**item, "concepts": known})


def _invalid_edit(findings: Sequence[Finding]) -> Problem:
    return Problem(
        INVALID_EDIT, places_detail(len(findings)), errors=[finding.body() for finding in findings[:MAX_ERRORS]]
    )


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
