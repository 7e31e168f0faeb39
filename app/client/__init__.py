"""A synchronous, typed client of the service.

>>> with Client("http://127.0.0.1:8000", key) as client:
...     job = client.edit("digits", [remove_samples(["img-0018"])])
...     version = client.wait(job).result_version
"""

from app.client.client import Client
from app.client.connection import Stream
from app.client.errors import ClientError, JobFailed, ProblemError, ServiceUnreachable, WaitTimeout
from app.client.operations import (
    JsonObject,
    LabelFix,
    NewSample,
    add_concepts,
    add_samples,
    drop_concepts,
    fix_concept_labels,
    remove_samples,
)
from app.client.resources import (
    Alias,
    ApiKey,
    ConsistencyProof,
    Dataset,
    EditCheck,
    Insight,
    Job,
    LedgerEntry,
    LedgerKey,
    LedgerKeys,
    Model,
    NewApiKey,
    RegisteredDataset,
    Sample,
    Upload,
    Version,
)

__all__ = [
    "Alias",
    "ApiKey",
    "Client",
    "ClientError",
    "ConsistencyProof",
    "Dataset",
    "EditCheck",
    "Insight",
    "Job",
    "JobFailed",
    "JsonObject",
    "LabelFix",
    "LedgerEntry",
    "LedgerKey",
    "LedgerKeys",
    "Model",
    "NewApiKey",
    "NewSample",
    "ProblemError",
    "RegisteredDataset",
    "Sample",
    "ServiceUnreachable",
    "Stream",
    "Upload",
    "Version",
    "WaitTimeout",
    "add_concepts",
    "add_samples",
    "drop_concepts",
    "fix_concept_labels",
    "remove_samples",
]
