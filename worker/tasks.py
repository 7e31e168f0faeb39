"""What passes between the process that holds the lease and the one that computes. Everything here is plain JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

JobKind = Literal["train", "register", "fit_factors", "edit", "retrain", "preview", "insight", "restore"]
Json = dict[str, Any]


@dataclass(frozen=True)
class BaseVersion:
    """A published version as the compute process needs it.

    ``factors_age`` counts the edits between ``factors_version`` and this version.
    """

    number: int
    concepts: list[str]
    classes: list[str]
    snapshot_digest: str
    weights_digest: str
    factors_digest: str | None
    factors_version: int | None
    metrics: Json
    factors_age: int = 0


@dataclass(frozen=True)
class Task:
    """One job, resolved: names to ids and columns, versions to digests of artifacts.

    ``snapshot_digest`` is the data set's for ``train`` and ``register``, the base version's otherwise. ``compared``
    is set for a retraining of an edit's version: ``{"base": BaseVersion, "edited": BaseVersion, "changes", "report"}``.
    """

    kind: JobKind
    model_id: str
    dataset_id: str
    architecture: Json
    training: Json
    concepts: list[str]
    classes: list[str]
    snapshot_digest: str
    seed: int
    base: BaseVersion | None = None
    changes: Json | None = None
    options: Json = field(default_factory=dict)
    upload_id: str | None = None
    compared: Json | None = None
    vote_rule: Json | None = None

    def to_json(self) -> Json:
        """Nested dictionaries and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """The inverse of ``to_json``."""
        base, compared = data["base"], data["compared"]
        if compared is not None:
            compared = compared | {name: BaseVersion(**compared[name]) for name in ("base", "edited")}
        return cls(**data | {"base": None if base is None else BaseVersion(**base), "compared": compared})


@dataclass(frozen=True)
class Result:
    """What a computation made, its artifacts durable in the store. ``publishes`` says whether it is a new version.

    ``factors_version`` is ``"this"`` when the factors were fitted on the new version itself.
    """

    concepts: list[str]
    publishes: bool
    snapshot_digest: str | None = None
    weights_digest: str | None = None
    factors_digest: str | None = None
    factors_version: int | Literal["this"] | None = None
    metrics: Json = field(default_factory=dict)
    report: Json = field(default_factory=dict)

    def to_json(self) -> Json:
        """Nested dictionaries and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """The inverse of ``to_json``."""
        return cls(**data)


class TaskFailure(Exception):
    """An expected end without a version: the job fails with this code and detail, both shown to the client."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
