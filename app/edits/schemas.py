"""Requests about jobs of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.datasets.names import is_key, is_subject
from app.datasets.schemas import FIXED_COLUMNS, PlainName
from app.kit.schemas import Name, RequestBody, SampleKey, SubjectReference, VersionNumber

MAX_OPERATIONS = 100


def _label(value: Any) -> Any:
    if value is None or (type(value) is int and value in (0, 1)):
        return value
    raise PydanticCustomError("label_not_0_1_unknown", "A label is 0, 1, or null for unknown.")


def _new_key(key: str) -> str:
    if not is_key(key):
        raise PydanticCustomError("invalid_key", "A key has 1 to 200 characters, no control characters and no slash.")
    return key


def _new_subject(reference: str) -> str:
    if not is_subject(reference):
        raise PydanticCustomError("invalid_subject", "A reference has 1 to 200 characters, none of them control.")
    return reference


def _not_reserved(name: str) -> str:
    if name in FIXED_COLUMNS:
        raise PydanticCustomError("reserved_name", "A concept cannot be called key, split, class, image or subject.")
    return name


Label = Annotated[Literal[0, 1] | None, BeforeValidator(_label)]
UploadId = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Loss = Annotated[float, Field(ge=0, le=1)]


class LabelFix(RequestBody):
    """The value of one concept of one sample; null says that it is unknown."""

    sample: SampleKey
    concept: Name
    value: Label


class FixConceptLabels(RequestBody):
    """Correct wrong concept labels."""

    op: Literal["fix_concept_labels"]
    labels: list[LabelFix] = Field(min_length=1)


class DropConcepts(RequestBody):
    """Take concepts out of the model."""

    op: Literal["drop_concepts"]
    concepts: list[Name] = Field(min_length=1)


class NewConcept(RequestBody):
    """A concept that the model shall predict from now on."""

    name: Annotated[PlainName, AfterValidator(_not_reserved)]


class AddConcepts(RequestBody):
    """Teach the model further concepts.

    ``labels`` are of rows that the version has, in any split; rows without one are unknown. Rows that the same request
    adds bring theirs along.
    """

    op: Literal["add_concepts"]
    concepts: list[NewConcept] = Field(min_length=1)
    labels: list[LabelFix] = Field(default=[])


class RemoveSamples(RequestBody):
    """Remove rows from the model's data: by key, or all rows of subjects."""

    op: Literal["remove_samples"]
    samples: list[SampleKey] = Field(default=[])
    subjects: list[SubjectReference] = Field(default=[])

    @model_validator(mode="after")
    def _names_something(self) -> RemoveSamples:
        if not self.samples and not self.subjects:
            raise PydanticCustomError("removes_nothing", "Name at least one sample or subject.")
        return self


class NewSample(RequestBody):
    """A row to add. Concepts that are not named are unknown; ``upload`` is an image sent to ``/uploads`` before."""

    key: Annotated[str, AfterValidator(_new_key)]
    class_: Name = Field(alias="class")
    concepts: dict[Name, Label] = Field(default={})
    split: Literal["train", "calibration", "test"] = "train"
    subject: Annotated[str, AfterValidator(_new_subject)] | None = None
    upload: UploadId


class AddSamples(RequestBody):
    """Add rows to the model's data."""

    op: Literal["add_samples"]
    samples: list[NewSample] = Field(min_length=1)


Operation = Annotated[
    FixConceptLabels | DropConcepts | AddConcepts | RemoveSamples | AddSamples, Field(discriminator="op")
]


class Tolerance(RequestBody):
    """How much of each F1 score on held-out data an edit may cost before it fails."""

    concept_f1: Loss = 0.02
    label_f1: Loss = 0.02


class EditOptions(RequestBody):
    """How an edit is computed."""

    method: Literal["solve", "closed_form"] = "solve"
    tolerance: Tolerance = Tolerance()
    label_solver: Literal["converged", "closed_form"] = "converged"
    on_failure: Literal["fail", "retrain"] = "fail"
    evidence: Literal["none", "standard", "full"] = "standard"
    reference_models: int = Field(0, ge=0, le=8, description="For `full` evidence; each costs a training.")
    seed: Seed = 0

    @model_validator(mode="after")
    def _uses_what_it_asks_for(self) -> EditOptions:
        if self.reference_models and self.evidence != "full":
            raise PydanticCustomError("reference_models_unused", "Reference models serve `full` evidence only.")
        return self


class EditRequest(RequestBody):
    """One edit: operations that are resolved together, on the data set first, into one new version."""

    operations: list[Operation] = Field(min_length=1, max_length=MAX_OPERATIONS)
    base_version: VersionNumber | None = None
    reason: Annotated[str, StringConstraints(max_length=2000)] | None = None
    options: EditOptions = EditOptions()

    def items(self) -> int:
        """Number of labels, samples, subjects and concepts named."""
        return sum(_size(operation) for operation in self.operations)

    def named(self, kind: type[RequestBody]) -> Iterable[tuple[int, Any]]:
        """Index and operation of every operation of one kind."""
        return ((index, operation) for index, operation in enumerate(self.operations) if isinstance(operation, kind))


class FactorsRequest(RequestBody):
    """Fit curvature factors on a version; the newest when the job starts, if none is named."""

    version: VersionNumber | None = None


class RetrainingRequest(RequestBody):
    """Train anew on a version's data, as a reference; the newest when the job starts, if none is named."""

    version: VersionNumber | None = None
    seed: Seed | None = Field(None, description="Of the first repetition; the model's own when absent.")
    repeats: int = Field(1, ge=1, le=10, description="Trainings with successive seeds; the figures are their means.")


def _size(operation: Operation) -> int:
    match operation:
        case FixConceptLabels():
            return len(operation.labels)
        case DropConcepts():
            return len(operation.concepts)
        case AddConcepts():
            return len(operation.concepts) + len(operation.labels)
        case RemoveSamples():
            return len(operation.samples) + len(operation.subjects)
        case AddSamples():
            return len(operation.samples)
