"""One table per file; importing this package registers them all."""

from app.tables.alias import Alias
from app.tables.api_key import ApiKey
from app.tables.base import Base
from app.tables.dataset import Dataset
from app.tables.idempotency_record import IdempotencyRecord
from app.tables.job import Job
from app.tables.job_event import JobEvent
from app.tables.ledger_entry import LedgerEntry
from app.tables.ledger_node import LedgerNode
from app.tables.ledger_payload import LedgerPayload
from app.tables.model import Model
from app.tables.sample import Sample
from app.tables.subject import Subject
from app.tables.upload import Upload
from app.tables.version import Version

__all__ = [
    "Alias",
    "ApiKey",
    "Base",
    "Dataset",
    "IdempotencyRecord",
    "Job",
    "JobEvent",
    "LedgerEntry",
    "LedgerNode",
    "LedgerPayload",
    "Model",
    "Sample",
    "Subject",
    "Upload",
    "Version",
]
