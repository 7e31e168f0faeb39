"""The client: one method per thing the service does."""

from __future__ import annotations

import json as json_text
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from app.client.connection import Connection, Content, Kind, Stream, listed_in, resource_of
from app.client.errors import JobFailed, WaitTimeout
from app.client.operations import JsonObject
from app.client.resources import (
    Alias,
    ApiKey,
    ConsistencyProof,
    Dataset,
    EditCheck,
    Insight,
    Job,
    LedgerEntry,
    LedgerKeys,
    Model,
    NewApiKey,
    RegisteredDataset,
    Sample,
    Upload,
    Version,
)

POLL_SECONDS = 0.2


class Client:
    """The service at ``url``, as the holder of ``key`` sees it.

    Creating methods send an Idempotency-Key: one of their own, or ``idempotency_key`` for an intention that outlives
    this process. Requests that may be repeated are sent again when the connection fails, for about 3 s.

    All methods raise ProblemError when the service refuses and ServiceUnreachable when it does not answer.
    """

    def __init__(
        self, url: str, key: str | None, *, timeout: float = 60.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._connection = Connection(url, key, timeout=timeout, transport=transport)

    @property
    def url(self) -> str:
        return self._connection.url

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def require_ready(self) -> None:
        """Raises ProblemError ``unavailable`` while the service has no database."""
        self._connection.get("/readyz")

    # Data

    def register_dataset(
        self,
        definition: Mapping[str, Any],
        manifest: Content,
        images: Content | Sequence[Path],
        *,
        votes: Content | None = None,
        idempotency_key: str | None = None,
    ) -> RegisteredDataset:
        """Register training data: a manifest (CSV or Parquet), and a zip or the image files.

        ``votes`` (Parquet) come with a definition that has a ``vote_rule``.
        """
        pictures = [images] if isinstance(images, bytes | Path | Stream) else images
        parts = [("manifest", "manifest", manifest), *(("images", _filename(image), image) for image in pictures)]
        if votes is not None:
            parts.append(("votes", "votes.parquet", votes))
        answer = self._connection.create(
            "/datasets",
            parts=parts,
            data={"definition": json_text.dumps(definition)},
            idempotency_key=idempotency_key,
        )
        return resource_of(answer, RegisteredDataset)

    def datasets(self) -> Iterator[Dataset]:
        return self._all("/datasets", "datasets", Dataset)

    def dataset(self, dataset_id: str) -> Dataset:
        return self._one(f"/datasets/{_in_path(dataset_id)}", Dataset)

    def samples(self, dataset_id: str, *, split: str | None = None, class_name: str | None = None) -> Iterator[Sample]:
        path = f"/datasets/{_in_path(dataset_id)}/samples"
        return self._all(path, "samples", Sample, {"split": split, "class": class_name})

    def sample(self, dataset_id: str, key: str) -> Sample:
        return self._one(f"/datasets/{_in_path(dataset_id)}/samples/{_in_path(key)}", Sample)

    def image(self, dataset_id: str, key: str) -> bytes:
        """The image's bytes, as they came."""
        path = f"/datasets/{_in_path(dataset_id)}/samples/{_in_path(key)}/image"
        return self._connection.get(path).content

    def upload(self, kind: str, files: Mapping[str, Content], *, idempotency_key: str | None = None) -> list[Upload]:
        """Send files ahead, ``kind`` "image" or "weights"; the uploads come in the order of the files."""
        answer = self._connection.create(
            "/uploads",
            params={"kind": kind},
            parts=[("files", name, content) for name, content in files.items()],
            idempotency_key=idempotency_key,
        )
        return listed_in(answer, "uploads", Upload)[0]

    # Models

    def create_model(
        self,
        model_id: str,
        dataset_id: str,
        architecture: Mapping[str, Any],
        *,
        training: Mapping[str, Any] | None = None,
        title: str | None = None,
        weights: str | None = None,
        pretrained: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue a training, or with ``weights`` (the id of an upload) a registration.

        ``pretrained``, the id of an upload too, is a backbone of torchvision's that the training starts from.
        """
        body = {
            "id": model_id,
            "title": title,
            "dataset": dataset_id,
            "architecture": dict(architecture),
            "training": dict(training or {}),
            "weights": None if weights is None else {"upload": weights},
            "pretrained": None if pretrained is None else {"upload": pretrained},
        }
        return self._job("/models", body, idempotency_key)

    def models(self) -> Iterator[Model]:
        return self._all("/models", "models", Model)

    def model(self, model_id: str) -> Model:
        return self._one(f"/models/{_in_path(model_id)}", Model)

    def versions(self, model_id: str) -> Iterator[Version]:
        """Newest first."""
        return self._all(f"/models/{_in_path(model_id)}/versions", "versions", Version)

    def version(self, model_id: str, number: int) -> Version:
        return self._one(f"/models/{_in_path(model_id)}/versions/{number}", Version)

    def weights(self, model_id: str, number: int) -> bytes:
        """A version's weights as a safetensors file."""
        return self._connection.get(f"/models/{_in_path(model_id)}/versions/{number}/weights").content

    def aliases(self, model_id: str) -> list[Alias]:
        answer = self._connection.get(f"/models/{_in_path(model_id)}/aliases")
        return listed_in(answer, "aliases", Alias)[0]

    def set_alias(self, model_id: str, name: str, version: int) -> Alias:
        """Make or move an alias."""
        path = f"/models/{_in_path(model_id)}/aliases/{_in_path(name)}"
        return resource_of(self._connection.put(path, {"version": version}), Alias)

    # Work

    def fit_factors(self, model_id: str, *, version: int | None = None, idempotency_key: str | None = None) -> Job:
        """Queue a fit of curvature factors; on the newest version if none is named."""
        return self._job(f"/models/{_in_path(model_id)}/factors", {"version": version}, idempotency_key)

    def retrain(
        self,
        model_id: str,
        *,
        version: int | None = None,
        seed: int | None = None,
        repeats: int = 1,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue ``repeats`` trainings on a version's data, as a reference; they make no version."""
        body = {"version": version, "seed": seed, "repeats": repeats}
        return self._job(f"/models/{_in_path(model_id)}/retrainings", body, idempotency_key)

    def edit(
        self,
        model_id: str,
        operations: Sequence[JsonObject],
        *,
        base_version: int | None = None,
        reason: str | None = None,
        options: Mapping[str, Any] | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue an edit: ``operations`` together make one new version.

        ``if_match`` is the model's etag as it was read: where another version is the newest by now, or is when the edit
        starts, it does not apply. So for ``preview`` and ``restore``.
        """
        path = f"/models/{_in_path(model_id)}/edits"
        return self._job(path, _edit_body(operations, base_version, reason, options), idempotency_key, if_match)

    def preview(
        self,
        model_id: str,
        operations: Sequence[JsonObject],
        *,
        base_version: int | None = None,
        options: Mapping[str, Any] | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue the computation of an edit that makes no version: ``report["would"]`` is "succeed" or "fail"."""
        path = f"/models/{_in_path(model_id)}/previews"
        return self._job(path, _edit_body(operations, base_version, None, options), idempotency_key, if_match)

    def restore(
        self,
        model_id: str,
        version: int,
        *,
        reason: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue the return to an older version: a new one with its weights, data, concepts and factors."""
        path = f"/models/{_in_path(model_id)}/versions/{version}:restore"
        return self._job(path, {"reason": reason}, idempotency_key, if_match)

    def look_into(
        self,
        model_id: str,
        version: int,
        kinds: Sequence[str],
        *,
        top: int = 20,
        sample: str | None = None,
        compared_with: int | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue insights into a version; read them with ``insights``.

        Args:
            kinds: of ``concept_importance``, ``influential_labels``, ``suspected_labels``, ``changed_predictions``.
            top: entries of each list, at most.
            sample: key of the row whose loss ``influential_labels`` explain; the held-out loss if None.
            compared_with: of ``changed_predictions``; the version's parent if None.
        """
        body = {"kinds": list(kinds), "top": top, "sample": sample, "compared_with": compared_with}
        return self._job(f"/models/{_in_path(model_id)}/versions/{version}/insights", body, idempotency_key)

    def insights(
        self, model_id: str, version: int, *, kind: str | None = None, job_id: str | None = None
    ) -> list[Insight]:
        """The newest of each kind, or of one kind; with ``job_id`` those that this job found."""
        path = f"/models/{_in_path(model_id)}/versions/{version}/insights"
        if job_id is not None:
            path = f"{path}/{_in_path(job_id)}"
        return listed_in(self._connection.get(path, {"kind": kind}), "insights", Insight)[0]

    def check_edit(
        self,
        model_id: str,
        operations: Sequence[JsonObject],
        *,
        base_version: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> EditCheck:
        """What an edit would change; nothing is queued."""
        path = f"/models/{_in_path(model_id)}/edits?validate_only=true"
        answer = self._connection.act(path, _edit_body(operations, base_version, None, options))
        return resource_of(answer, EditCheck)

    def job(self, model_id: str, job_id: str) -> Job:
        """A job of any kind."""
        return self._one(f"/models/{_in_path(model_id)}/jobs/{_in_path(job_id)}", Job)

    def jobs(self, model_id: str, *, state: str | None = None, kind: str | None = None) -> Iterator[Job]:
        """Newest first."""
        return self._all(f"/models/{_in_path(model_id)}/jobs", "jobs", Job, {"state": state, "kind": kind})

    def edits(self, model_id: str, *, state: str | None = None) -> Iterator[Job]:
        """Newest first."""
        return self._all(f"/models/{_in_path(model_id)}/edits", "edits", Job, {"state": state})

    def previews(self, model_id: str, *, state: str | None = None) -> Iterator[Job]:
        """Newest first."""
        return self._all(f"/models/{_in_path(model_id)}/previews", "previews", Job, {"state": state})

    def cancel(self, job: Job) -> Job:
        """Cancel a queued job, or ask a running one to stop: ``wait`` for its end."""
        return resource_of(self._connection.act(f"{job.path}:cancel"), Job)

    def wait(
        self,
        job: Job,
        *,
        on_progress: Callable[[Job], None] | None = None,
        timeout: float | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> Job:
        """Read ``job`` until it has succeeded; ``on_progress`` gets every reading, the last one included.

        Raises:
            JobFailed: it failed or was cancelled.
            WaitTimeout: it has not ended within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            job = self._one(job.path, Job)
            if on_progress is not None:
                on_progress(job)
            if job.state == "succeeded":
                return job
            if job.finished:
                raise JobFailed(job)
            if timeout is not None and deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(job, timeout)
            time.sleep(poll_seconds)

    # History and keys

    def ledger(
        self,
        model_id: str | None = None,
        *,
        dataset_id: str | None = None,
        version: int | None = None,
        kind: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[LedgerEntry]:
        """Newest first; a model's, or with ``model_id`` None everything the key may see. All filters must hold.

        Args:
            version: made from it or resulting in it.
            actor: id of an API key, ``worker`` or ``operator``.
            since, until: with a time zone; the first is included, the second is not.
        """
        filters = {
            "dataset": dataset_id,
            "version": None if version is None else str(version),
            "kind": kind,
            "actor": actor,
            "since": None if since is None else since.isoformat(),
            "until": None if until is None else until.isoformat(),
        }
        if model_id is not None and dataset_id is None:
            return self._all(f"/models/{_in_path(model_id)}/ledger", "entries", LedgerEntry, filters)
        return self._all("/ledger", "entries", LedgerEntry, {"model": model_id, **filters})

    def receipt(self, model_id: str, edit_id: str) -> bytes:
        """Proof that the history holds what was recorded of an edit: JSON to keep, and to verify offline."""
        return self._connection.get(f"/models/{_in_path(model_id)}/edits/{_in_path(edit_id)}/receipt").content

    def ledger_export(self, target: Path) -> None:
        """Write the whole history to a file, for `modelmend ledger verify`."""
        self._connection.download("/ledger/export", target)

    def model_ledger_export(self, model_id: str, target: Path) -> None:
        """Write a model's history, with its proofs, to a file."""
        self._connection.download(f"/models/{_in_path(model_id)}/ledger/export", target)

    def checkpoint(self) -> str:
        """The newest signed checkpoint of the history: a note to keep."""
        return self._connection.text("/ledger/checkpoint")

    def consistency_proof(self, first: int, second: int) -> list[str]:
        """That the first ``second`` entries begin with the first ``first``: hashes in hex (RFC 9162 §2.1.4)."""
        answer = self._connection.get("/ledger/proofs/consistency", {"first": first, "second": second})
        return resource_of(answer, ConsistencyProof).proof

    def ledger_keys(self) -> LedgerKeys:
        return self._one("/ledger/keys", LedgerKeys)

    def create_api_key(self, name: str, role: str, *, models: Sequence[str] | None = None) -> NewApiKey:
        """Make a key. Not repeated when the connection fails: look at ``api_keys`` and revoke what was lost."""
        body = {"name": name, "role": role, "models": None if models is None else list(models)}
        return resource_of(self._connection.act("/api-keys", body, repeatable=False), NewApiKey)

    def api_keys(self) -> Iterator[ApiKey]:
        return self._all("/api-keys", "api_keys", ApiKey)

    def revoke_api_key(self, key_id: str) -> ApiKey:
        return resource_of(self._connection.act(f"/api-keys/{_in_path(key_id)}:revoke"), ApiKey)

    def _one(self, path: str, kind: type[Kind]) -> Kind:
        return resource_of(self._connection.get(path), kind)

    def _all(
        self, path: str, member: str, kind: type[Kind], filters: Mapping[str, str | None] | None = None
    ) -> Iterator[Kind]:
        """Every page, one after the other as they are needed."""
        token: str | None = None
        while True:
            answer = self._connection.get(path, {**(filters or {}), "page_size": 200, "page_token": token})
            page, token = listed_in(answer, member, kind)
            yield from page
            if token is None:
                return

    def _job(self, path: str, body: Mapping[str, Any], idempotency_key: str | None, if_match: str | None = None) -> Job:
        answer = self._connection.create(path, body, idempotency_key=idempotency_key, if_match=if_match)
        return resource_of(answer, Job)


def _edit_body(
    operations: Sequence[JsonObject],
    base_version: int | None,
    reason: str | None,
    options: Mapping[str, Any] | None,
) -> JsonObject:
    return {
        "operations": list(operations),
        "base_version": base_version,
        "reason": reason,
        "options": dict(options or {}),
    }


def _in_path(part: str) -> str:
    return quote(part, safe="")


def _filename(content: Content) -> str:
    return "images.zip" if isinstance(content, bytes) else content.name
