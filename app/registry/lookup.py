"""Finding models and versions, for callers who may see them."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.kit.problems import NOT_FOUND, Problem, register_problem_type
from app.tables import Model, Version

MODEL_HAS_NO_VERSION = register_problem_type(
    "model_has_no_version",
    409,
    "The model has no ready version yet",
    "Wait until its training or registration has succeeded.",
)
VERSION_WITHDRAWN = register_problem_type(
    "version_withdrawn", 410, "The version's weights are gone", "Use a later version."
)


def get_model(session: Session, caller: Caller, model_id: str) -> Model:
    """Raises ``not_found``, alike for models that do not exist and for those the key is not meant for."""
    caller.require_model(model_id)
    model = session.get(Model, model_id)
    if model is None:
        raise Problem(NOT_FOUND, "There is no such model.")
    return model


def get_version(session: Session, model: Model, number: int) -> Version:
    """Raises ``not_found``."""
    version = session.get(Version, (model.id, number))
    if version is None:
        raise Problem(NOT_FOUND, "The model has no such version.")
    return version


def newest_version(session: Session, model: Model) -> Version:
    """Raises ``model_has_no_version`` when the newest version is not ready, or none was published."""
    version = session.get(Version, (model.id, model.latest_version)) if model.latest_version is not None else None
    if version is None or version.state != "ready":
        raise Problem(MODEL_HAS_NO_VERSION, "No version of the model is ready.")
    return version
