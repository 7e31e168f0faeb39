"""What an interrupted fit left behind, so that it goes on instead of starting again.

A checkpoint is a folder with one safetensors file per stage. Every file is replaced in one step, and carries the
fingerprint of the fit it belongs to: settings, layers, and a digest of the model's weights.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from worker.curvature.errors import CheckpointError
from worker.curvature.passes import Batch, Batches

_KEY = "modelmend.checkpoint"


@dataclass(frozen=True)
class Stage:
    """One stage's file: how many rows its sums are over, their digest, whether that is all rows, and the tensors."""

    count: int
    rows_sha256: str
    complete: bool
    tensors: Mapping[str, Tensor]


@dataclass
class Checkpoint:
    """The files of one fit.

    Args:
        folder: made when the first file is written.
        fingerprint: of the fit, see :func:`fingerprint`.
        seconds: time between two writes within a stage.
    """

    folder: Path
    fingerprint: str
    seconds: float
    _written: float = field(default_factory=time.monotonic)

    def load(self, stage: str, device: torch.device) -> Stage | None:
        """What was saved of a stage, on ``device``; None if nothing was.

        Raises:
            CheckpointError: the file is damaged, or belongs to another fit.
        """
        path = self._path(stage)
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[_KEY])
                tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
            if header["fingerprint"] == self.fingerprint:
                return Stage(header["count"], header["rows_sha256"], header["complete"], tensors)
        except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); delete {self.folder} to start the fit again"
            ) from error
        raise CheckpointError(f"{path} belongs to a fit of another model or with other settings; delete {self.folder}")

    def holds(self, stage: str) -> bool:
        """Whether anything was saved of a stage."""
        return self._path(stage).exists()

    @property
    def due(self) -> bool:
        """Whether the last write is long enough ago."""
        return time.monotonic() - self._written >= self.seconds

    def save(self, stage: str, content: Stage) -> None:
        """Replace a stage's file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        header = {
            "fingerprint": self.fingerprint,
            "count": content.count,
            "rows_sha256": content.rows_sha256,
            "complete": content.complete,
        }
        partial = self._path(stage).with_suffix(".partial")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in content.tensors.items()}
        save_file(tensors, partial, metadata={_KEY: json.dumps(header, sort_keys=True)})
        partial.replace(self._path(stage))
        self._written = time.monotonic()

    def forget(self, stage: str) -> None:
        """Delete a stage's file, and the folder with the last of them."""
        self._path(stage).unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _path(self, stage: str) -> Path:
        return self.folder / f"{stage}.safetensors"


class Remaining:
    """The batches of a pass behind the ``count`` rows that an earlier attempt has summed.

    Attributes:
        rows_sha256: digest of the row indices up to and with the batch yielded last.

    Raises:
        CheckpointError: while iterating: the rows passed over are not those of the earlier attempt.
    """

    def __init__(self, batches: Batches, count: int = 0, rows_sha256: str = "") -> None:
        self._batches, self._count, self._expected = batches, count, rows_sha256
        self._digest = hashlib.sha256()

    @property
    def rows_sha256(self) -> str:
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[Batch]:
        missing = self._count
        for x, mask, rows in self._batches():
            passed = min(missing, len(rows))
            if passed:
                self._add(rows[:passed])
                missing -= passed
                if missing == 0 and self.rows_sha256 != self._expected:
                    raise CheckpointError("the rows are not those, or not in the order, of before the interruption")
            if passed < len(rows) or not len(rows):
                self._add(rows[passed:])
                yield (
                    (x[passed:], None if mask is None else mask[passed:], rows[passed:]) if passed else (x, mask, rows)
                )
        if missing:
            raise CheckpointError(f"{missing} rows fewer than before the interruption")

    def _add(self, rows: Tensor) -> None:
        self._digest.update(rows.to("cpu", torch.int64).numpy().tobytes())


def fingerprint(model: nn.Module, settings: Mapping[str, Any]) -> str:
    """Digest of a model's weights and buffers and of JSON-ready settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, value in model.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(
            value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data if value.numel() else b""
        )
    return digest.hexdigest()
