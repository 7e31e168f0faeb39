"""Where a running service can be found: a file in its data directory, for commands that talk to it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

FILE = "running.json"


class RunningRecord(BaseModel):
    """The service on a data directory: its process, its address, and the servers it uses."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pid: int
    url: str
    database_url: str
    redis_url: str

    def write(self, data_dir: Path) -> None:
        """Replace what an earlier run left."""
        write_private(data_dir / FILE, self.model_dump_json())

    @staticmethod
    def read(data_dir: Path) -> RunningRecord | None:
        """The service that runs on ``data_dir``, if its process lives."""
        try:
            record = RunningRecord.model_validate_json((data_dir / FILE).read_bytes())
            os.kill(record.pid, 0)
        except (FileNotFoundError, NotADirectoryError, ValidationError, ProcessLookupError):
            return None
        except PermissionError:
            pass  # somebody else's process
        return record

    @staticmethod
    def remove(data_dir: Path) -> None:
        (data_dir / FILE).unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else may read, whole or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
