"""Operations of an edit, as ``Client.edit`` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

JsonObject = dict[str, Any]
Label = Literal[0, 1] | None


@dataclass(frozen=True)
class LabelFix:
    """The value of one concept of one sample; None says that it is unknown."""

    sample: str
    concept: str
    value: Label


@dataclass(frozen=True)
class NewSample:
    """A row to add; concepts that are not named are unknown. ``upload`` is the id of an uploaded image."""

    key: str
    class_: str
    upload: str
    concepts: Mapping[str, Label] = field(default_factory=dict)
    split: Literal["train", "calibration", "test"] = "train"
    subject: str | None = None


def fix_concept_labels(labels: Iterable[LabelFix]) -> JsonObject:
    """Correct wrong concept labels."""
    return {"op": "fix_concept_labels", "labels": [asdict(label) for label in labels]}


def drop_concepts(concepts: Iterable[str]) -> JsonObject:
    """Take concepts out of the model."""
    return {"op": "drop_concepts", "concepts": list(concepts)}


def add_concepts(concepts: Iterable[str], labels: Iterable[LabelFix] = ()) -> JsonObject:
    """Teach the model further concepts; rows without a label are unknown."""
    return {
        "op": "add_concepts",
        "concepts": [{"name": name} for name in concepts],
        "labels": [asdict(label) for label in labels],
    }


def remove_samples(samples: Iterable[str] = (), *, subjects: Iterable[str] = ()) -> JsonObject:
    """Remove rows by key, or all rows of subjects."""
    return {"op": "remove_samples", "samples": list(samples), "subjects": list(subjects)}


def add_samples(samples: Iterable[NewSample]) -> JsonObject:
    """Add rows."""
    rows = [asdict(sample) for sample in samples]
    return {"op": "add_samples", "samples": [{"class": row.pop("class_"), **row} for row in rows]}
