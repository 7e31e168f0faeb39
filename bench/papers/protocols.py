"""What the paper does with each data set, and what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.datasets.importers.derm7pt import Diagnosis
from app.datasets.importers.layouts import Choices, Layout

CONCEPTS_OF_CUB = 112


@dataclass(frozen=True)
class Protocol:
    """Attributes:
    choices: of the importer, as the paper reads the data set.
    image_size: pixels to a side.
    epochs: of a training.
    dropped: concepts that the table's concept-level edit removes.
    """

    layout: Layout
    choices: Choices
    image_size: int
    epochs: int
    dropped: int


# The paper names the backbone, ResNet-18, and neither image sizes nor epochs. Sizes are what all images of a data set
# fit into memory with; epochs are where the calibration loss has long stopped falling.
PROTOCOLS: Mapping[str, Protocol] = {
    "cub": Protocol(Layout.CUB, Choices(), 224, 60, 10),
    "oai": Protocol(Layout.OAI, Choices(merged=(("0", "1"),)), 224, 20, 1),  # grades 0 and 1 as Koh et al. (2020)
    "celeba": Protocol(Layout.CELEBA, Choices(), 64, 20, 1),
    "derm7pt": Protocol(Layout.DERM7PT, Choices(diagnosis=Diagnosis.MELANOMA), 224, 60, 1),
}

ARCHITECTURES = ("resnet18", "small_conv")

TABLE_SHARE = 0.03
"""Of rows with a flipped label, and of removed rows."""
HELD_OUT_SHARE = 0.10
"""Of rows that are added."""
RATIOS = tuple(percent / 100 for percent in range(1, 11))
NOISE = 0.10
LABEL_NOISE_LEVELS = (0.05, 0.10, 0.20)
"""Shares of all concept labels that are flipped; the paper has the second."""
ROUNDS = 10
INFLUENTIAL = 10
ATTACKED = 200
"""Members, and as many non-members."""


def architecture_of(name: str, image_size: int) -> dict[str, Any]:
    """As :func:`worker.cbm.concept_predictor.build_concept_predictor` takes it."""
    if name == "small_conv":
        return {"name": name, "width": 16, "image_size": image_size, "channels": 3}
    return {"name": name, "stem": "small" if image_size <= 64 else "standard", "width": 64, "image_size": image_size}


def training_of(name: str, epochs: int, rows: int) -> dict[str, Any]:
    """No early stop but the choice of the best epoch; small data sets get smaller batches, or epochs were few steps."""
    return {
        "epochs": epochs,
        "batch_size": max(8, min(64, rows // 16)),
        "learning_rate": 4e-3 if name == "small_conv" else 1e-3,
        "weight_decay": 1e-5,
        "label_weight_decay": 1e-3,
        "augment": False,
        "patience": epochs,
    }


def concepts_at(ratio: float, concepts: int) -> int:
    """Concepts that a ratio stands for: 2 to 20 of CUB's 112 for 1 to 10 %, in proportion elsewhere, at most half."""
    return max(1, min(round(200 * ratio * concepts / CONCEPTS_OF_CUB), concepts // 2))
