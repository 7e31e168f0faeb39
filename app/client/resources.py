"""What the service answers with. Members that a newer service adds are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field


class Resource(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Dataset(Resource):
    """A registered data set; ``counts`` are rows per split, ``vote_rule`` is set where classes vote on labels."""

    id: str
    title: str
    concepts: list[str]
    classes: list[str]
    counts: dict[str, int]
    vote_rule: dict[str, Any] | None
    snapshot_sha256: str
    created_at: datetime


class RegisteredDataset(Dataset):
    """A data set just registered."""

    unreferenced_images: int


class Sample(Resource):
    """One row as registered; a concept's label is 0, 1, or None for unknown."""

    key: str
    split: str
    class_: str = Field(alias="class")
    concepts: dict[str, int | None]
    votes: dict[str, int | None] | None
    image_sha256: str
    image_bytes: int
    has_subject: bool
    subject: str | None


class Upload(Resource):
    """A file that waits to be used."""

    id: str
    kind: str
    filename: str | None
    sha256: str
    bytes: int
    expires_at: datetime


class Model(Resource):
    """A model and the number of its newest version."""

    id: str
    title: str
    dataset: str
    architecture: dict[str, Any]
    training: dict[str, Any]
    latest_version: int | None
    etag: str
    aliases: dict[str, int]
    created_at: datetime


class Version(Resource):
    """One immutable state of a model."""

    model: str
    number: int
    parent: int | None
    job: UUID
    state: str
    concepts: list[str]
    classes: list[str]
    snapshot_sha256: str
    weights_sha256: str
    factors_sha256: str | None
    factors_version: int | None
    metrics: dict[str, Any]
    code_version: str
    created_at: datetime


class Alias(Resource):
    """A movable name of a version."""

    name: str
    version: int
    updated_at: datetime


class Progress(Resource):
    """``done`` of ``total`` steps of a job's stage."""

    done: int
    total: int


class JobResult(Resource):
    """The version that a job made."""

    version: int


class JobError(Resource):
    """Why a job failed."""

    code: str
    detail: str


class Job(Resource):
    """Work on a model; an edit is one."""

    id: UUID
    model: str
    kind: Literal["train", "register", "fit_factors", "edit", "retrain", "preview", "insight", "restore"]
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    stage: str | None
    progress: Progress
    attempt: int
    cancel_requested: bool
    request: dict[str, Any]
    base_version: int | None
    result: JobResult | None
    error: JobError | None
    report: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def finished(self) -> bool:
        """Whether the state is final."""
        return self.state in {"succeeded", "failed", "cancelled"}

    @property
    def result_version(self) -> int | None:
        """Number of the version it made, if any."""
        return None if self.result is None else self.result.version

    @property
    def path(self) -> str:
        """Where it is read."""
        collection = {"edit": "edits", "preview": "previews"}.get(self.kind, "jobs")
        return f"/models/{self.model}/{collection}/{self.id}"


class EditCheck(Resource):
    """What an edit would change, counted."""

    base_version: int
    counts: dict[str, int]


class Insight(Resource):
    """What one job found of one kind; ``omitted_rows`` entries were about rows that are gone."""

    kind: str
    version: int
    job: UUID
    finished_at: datetime
    omitted_rows: int
    result: dict[str, Any]


class LedgerEntry(Resource):
    """One event of the history; its payload and the salt of its commitment are None once erased."""

    seq: int
    at: datetime
    kind: str
    actor_ref: str
    subject_ref: str | None
    dataset_id: str | None
    model_id: str | None
    job_id: UUID | None
    parent_version: int | None
    result_version: int | None
    artifact_sha256: str | None
    payload_commitment: str
    payload: dict[str, Any] | None
    payload_salt: str | None


class LedgerKey(Resource):
    """A verifier key, ``name+id+base64``, of the history; ``retired`` ones verify old checkpoints only."""

    key: str
    retired: bool


class LedgerKeys(Resource):
    """All keys that have signed the history, as the service has them: an auditor needs them from elsewhere."""

    origin: str
    keys: list[LedgerKey]


class ConsistencyProof(Resource):
    """That the tree of ``second`` entries begins with that of ``first``; hashes in hex."""

    first: int
    second: int
    proof: list[str]


class ApiKey(Resource):
    """A key without its text."""

    id: UUID
    name: str
    role: str
    prefix: str
    models: list[str] | None
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewApiKey(Resource):
    """A key just made; ``key`` is its text, which cannot be had again."""

    api_key: ApiKey
    key: str
