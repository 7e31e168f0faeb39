"""Creating models and moving aliases."""

from __future__ import annotations

import secrets
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.datasets.repository import visible_to
from app.edits import line
from app.edits.kinds import JobKind
from app.kit.problem_handlers import places_detail
from app.kit.problems import ALREADY_EXISTS, FORBIDDEN, INVALID_REQUEST, Problem
from app.ledger import service as ledger
from app.ledger.kinds import LedgerKind
from app.registry.lookup import get_version
from app.registry.schemas import ModelRequest, SmallConv
from app.tables import Alias, Dataset, Job, Model, Upload

_UPLOAD_KEPT = timedelta(days=7)  # a registration may wait in the line longer than an upload is kept


def create_model(session: Session, caller: Caller, request: ModelRequest) -> tuple[Model, Job]:
    """Create a model and queue the job that makes its first version.

    Raises:
        Problem: ``invalid_request`` for a data set, upload or settings that cannot be used, ``already_exists``, or
            ``forbidden`` for an id outside those the key is limited to.
    """
    model_id = request.id or f"model-{secrets.token_hex(4)}"
    if not caller.sees_model(model_id):
        raise Problem(FORBIDDEN, "The key is limited to other models.")
    dataset = session.scalar(select(Dataset).where(Dataset.id == request.dataset, visible_to(caller)))
    if dataset is None:
        raise _invalid("/dataset", "unknown_dataset", "There is no such data set.")
    if not all(dataset.counts.values()):
        raise _invalid("/dataset", "empty_split", "Each split of the data set needs rows.")
    training = request.training
    if training.frozen_backbone and training.weight_decay == 0:
        raise _invalid("/training/weight_decay", "not_convex", "With a frozen backbone the weight decay is above 0.")
    if training.frozen_backbone and training.augment:
        raise _invalid("/training/augment", "features_fixed", "With a frozen backbone images are not augmented.")
    architecture = request.architecture.model_dump(mode="json")
    if request.weights is not None:
        _keep_upload(session, caller, request.weights.upload, "/weights/upload")
    if request.pretrained is not None:
        if request.weights is not None:
            raise _invalid("/pretrained", "weights_given", "A registered model is not trained: leave one of them out.")
        if isinstance(request.architecture, SmallConv):
            raise _invalid("/pretrained", "not_pretrainable", "There are no pretrained weights of this architecture.")
        upload = _keep_upload(session, caller, request.pretrained.upload, "/pretrained/upload")
        if "normalisation" not in request.architecture.model_fields_set:
            architecture["normalisation"] = "imagenet"
        architecture["pretrained_sha256"] = upload.sha256
    created = session.execute(
        insert(Model)
        .values(
            id=model_id,
            title=request.title or model_id,
            dataset_id=dataset.id,
            architecture=architecture,
            training=request.training.model_dump(mode="json"),
            created_by=caller.key_id,
        )
        .on_conflict_do_nothing()
        .returning(Model.id)
    ).scalar_one_or_none()
    if created is None:
        raise Problem(ALREADY_EXISTS, "There is a model with this id.")
    model = session.get_one(Model, model_id)
    ledger.append(
        session,
        LedgerKind.MODEL_CREATED,
        actor_ref=caller.actor_ref,
        dataset_id=dataset.id,
        model_id=model_id,
        artifact_sha256=dataset.snapshot_digest,
        payload={"architecture": model.architecture, "training": model.training},
    )
    job = line.join(
        session,
        model_id=model_id,
        dataset_id=dataset.id,
        kind=JobKind.TRAIN if request.weights is None else JobKind.REGISTER,
        request=request.model_copy(update={"id": model_id}).model_dump(mode="json"),
        created_by=caller.key_id,
    )
    return model, job


def move_alias(session: Session, caller: Caller, model: Model, name: str, number: int) -> Alias:
    """Point an alias at a ready version; pointing it where it points already changes nothing."""
    session.execute(select(Model.id).where(Model.id == model.id).with_for_update(key_share=True))
    version = get_version(session, model, number)
    if version.state != "ready":
        raise _invalid("/version", "version_not_ready", "An alias points to ready versions only.")
    alias = session.get(Alias, (model.id, name))
    before = None if alias is None else alias.version
    if alias is None:
        alias = Alias(model_id=model.id, name=name, version=number)
        session.add(alias)
    elif before != number:
        alias.version = number
        alias.updated_at = session.execute(select(func.now())).scalar_one()
    session.flush()
    session.refresh(alias)
    if before != number:
        ledger.append(
            session,
            LedgerKind.ALIAS_MOVED,
            actor_ref=caller.actor_ref,
            dataset_id=model.dataset_id,
            model_id=model.id,
            parent_version=before,
            result_version=number,
            artifact_sha256=version.weights_digest,
            payload={"alias": name},
        )
    return alias


def _keep_upload(session: Session, caller: Caller, upload_id: str, pointer: str) -> Upload:
    upload = session.scalar(
        select(Upload)
        .where(
            Upload.id == upload_id,
            Upload.kind == "weights",
            Upload.created_by == caller.key_id,
            Upload.expires_at > func.now(),
        )
        .with_for_update()
    )
    if upload is None:
        raise _invalid(pointer, "unknown_upload", "This is not a weights upload of yours that waits.")
    now = session.execute(select(func.now())).scalar_one()
    upload.expires_at = max(upload.expires_at, now + _UPLOAD_KEPT)
    return upload


def _invalid(pointer: str, code: str, message: str) -> Problem:
    error = {"pointer": pointer, "code": code, "message": message}
    return Problem(INVALID_REQUEST, places_detail(1), errors=[error])
