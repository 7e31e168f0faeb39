"""Kinds of ledger entries: ``resource.action``. The history keeps these words for ever; never rename one."""

from __future__ import annotations

from enum import StrEnum


class LedgerKind(StrEnum):
    """What an entry records; ``description`` says when it is written."""

    description: str

    def __new__(cls, value: str, description: str = "") -> LedgerKind:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member

    DATASET_REGISTERED = "dataset.registered", "A data set was registered; the artifact is its snapshot."
    MODEL_CREATED = "model.created", "A model was created; it has no version yet."
    VERSION_PUBLISHED = "version.published", "A version came into being; the artifact is its weights."
    VERSION_FACTORS_FITTED = "version.factors_fitted", "Curvature factors were fitted on a version."
    ALIAS_MOVED = "alias.moved", "An alias points to another version."
    API_KEY_CREATED = "api_key.created", "An API key was made."
    API_KEY_REVOKED = "api_key.revoked", "An API key was revoked."
    SIGNING_KEY_CREATED = "signing_key.created", "Checkpoints began to be signed; the payload has the key."
    SIGNING_KEY_ROTATED = "signing_key.rotated", "Another key signs checkpoints from here on; the payload has both."
    LEDGER_PAYLOADS_ERASED = "ledger.payloads_erased", "Payloads of the entries that this one names were deleted."

    TRAINING_ACCEPTED = "training.accepted", "A training was asked for and queued."
    TRAINING_STARTED = "training.started", "A worker started an attempt of a training."
    TRAINING_SUCCEEDED = "training.succeeded", "A training published the model's first version."
    TRAINING_FAILED = "training.failed", "A training ended without a version."
    TRAINING_CANCELLED = "training.cancelled", "A training was cancelled."

    REGISTRATION_ACCEPTED = "registration.accepted", "Registration of existing weights was asked for and queued."
    REGISTRATION_STARTED = "registration.started", "A worker started an attempt of a registration."
    REGISTRATION_SUCCEEDED = "registration.succeeded", "A registration published the model's first version."
    REGISTRATION_FAILED = "registration.failed", "A registration ended without a version."
    REGISTRATION_CANCELLED = "registration.cancelled", "A registration was cancelled."

    FACTORS_ACCEPTED = "factors.accepted", "Fitting of curvature factors was asked for and queued."
    FACTORS_STARTED = "factors.started", "A worker started an attempt to fit factors."
    FACTORS_SUCCEEDED = "factors.succeeded", "Factors were fitted."
    FACTORS_FAILED = "factors.failed", "Fitting of factors failed."
    FACTORS_CANCELLED = "factors.cancelled", "Fitting of factors was cancelled."

    EDIT_ACCEPTED = "edit.accepted", "An edit was asked for and queued."
    EDIT_STARTED = "edit.started", "A worker started an attempt of an edit."
    EDIT_SUCCEEDED = "edit.succeeded", "An edit published a version."
    EDIT_FAILED = "edit.failed", "An edit ended without a version."
    EDIT_CANCELLED = "edit.cancelled", "An edit was cancelled."

    RETRAINING_ACCEPTED = "retraining.accepted", "A retraining for reference was asked for and queued."
    RETRAINING_STARTED = "retraining.started", "A worker started an attempt of a retraining."
    RETRAINING_SUCCEEDED = "retraining.succeeded", "A retraining ended; it makes no version."
    RETRAINING_FAILED = "retraining.failed", "A retraining failed."
    RETRAINING_CANCELLED = "retraining.cancelled", "A retraining was cancelled."

    PREVIEW_ACCEPTED = "preview.accepted", "A preview of an edit was asked for and queued."
    PREVIEW_STARTED = "preview.started", "A worker started an attempt of a preview."
    PREVIEW_SUCCEEDED = "preview.succeeded", "A preview ended; it makes no version."
    PREVIEW_FAILED = "preview.failed", "A preview failed: so would the edit."
    PREVIEW_CANCELLED = "preview.cancelled", "A preview was cancelled."

    INSIGHT_ACCEPTED = "insight.accepted", "An insight into a version was asked for and queued."
    INSIGHT_STARTED = "insight.started", "A worker started an attempt of an insight."
    INSIGHT_SUCCEEDED = "insight.succeeded", "An insight ended; it makes no version."
    INSIGHT_FAILED = "insight.failed", "An insight failed."
    INSIGHT_CANCELLED = "insight.cancelled", "An insight was cancelled."

    RESTORATION_ACCEPTED = "restoration.accepted", "The return to an older version was asked for and queued."
    RESTORATION_STARTED = "restoration.started", "A worker started an attempt of a restoration."
    RESTORATION_SUCCEEDED = "restoration.succeeded", "An older version's state was published as a new version."
    RESTORATION_FAILED = "restoration.failed", "A restoration ended without a version."
    RESTORATION_CANCELLED = "restoration.cancelled", "A restoration was cancelled."
