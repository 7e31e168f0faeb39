"""What the demo does, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """Wrong labels are a share of the training rows; removed rows a share of all, taken from those of training."""

    dataset_id: str = "digits"
    model_id: str = "digits"
    wrong_labels: float = 0.05
    dropped_concept: str = "crossing"
    removed_rows: float = 0.03
    repeats: int = 2  # retrainings that each edit is compared with
    seed: int = 4
    architecture: Mapping[str, Any] = field(
        default_factory=lambda: {"name": "small_conv", "width": 32, "image_size": 8, "channels": 1}
    )
    training: Mapping[str, Any] = field(
        default_factory=lambda: {"epochs": 30, "learning_rate": 2e-3, "weight_decay": 1e-3, "patience": 30}
    )
