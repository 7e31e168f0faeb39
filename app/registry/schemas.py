"""Architectures, training settings, and what the registry says and is told."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, StringConstraints

from app.kit.schemas import AnswerBody, Name, RequestBody, Slug, Title, VersionNumber
from app.tables import Alias, Model, Version


class SmallConv(RequestBody):
    """A small convolutional net with BatchNorm, for images of few pixels."""

    name: Literal["small_conv"]
    width: int = Field(32, ge=8, le=256, description="Channels of the first block.")
    image_size: int = Field(16, ge=8, le=256, description="Images are resized to squares of this many pixels.")
    channels: Literal[1, 3] = 3


class _TorchvisionBackbone(RequestBody):
    """What torchvision's backbones share. The ``small`` stem has stride 1, for images of about 64 pixels and less."""

    stem: Literal["full", "small"] = "full"
    image_size: int = Field(224, ge=16, le=512, description="Images are resized to squares of this many pixels.")
    channels: Literal[3] = 3
    normalisation: Literal["symmetric", "imagenet"] = Field(
        "symmetric",
        description="Of pixels: to [-1, 1], or by ImageNet's mean and deviation, as torchvision's weights expect and "
        "as is chosen with `pretrained` unless said otherwise.",
    )


class ResNet(_TorchvisionBackbone):
    """torchvision's ResNet; its ``small`` stem has no pooling either, and a 3×3 convolution."""

    name: Literal["resnet18", "resnet34", "resnet50"]
    width: int = Field(64, ge=8, le=256, description="Channels of the first stage; 64 is torchvision's.")


class MobileNetV3(_TorchvisionBackbone):
    """torchvision's MobileNetV3, without its classifier."""

    name: Literal["mobilenet_v3_small", "mobilenet_v3_large"]
    width_multiplier: float = Field(1.0, ge=0.1, le=2.0, description="Of every layer's channels; 1 is torchvision's.")


class EfficientNet(_TorchvisionBackbone):
    """torchvision's EfficientNet-B0, without its classifier and without stochastic depth."""

    name: Literal["efficientnet_b0"]
    width_multiplier: float = Field(1.0, ge=0.1, le=2.0, description="Of every layer's channels; 1 is torchvision's.")


Architecture = Annotated[SmallConv | ResNet | MobileNetV3 | EfficientNet, Field(discriminator="name")]


class Training(RequestBody):
    """How a model is trained, and so also how it is trained anew for comparison."""

    epochs: int = Field(30, ge=1, le=1000)
    batch_size: int = Field(64, ge=1, le=4096)
    learning_rate: float = Field(1e-3, gt=0, le=1)
    weight_decay: float = Field(1e-3, ge=0, le=1, description="In units of the loss summed over concepts.")
    label_weight_decay: float = Field(1e-3, gt=0, le=1, description="Of the label predictor; keeps it convex.")
    patience: int = Field(5, ge=1, le=1000, description="Epochs without gain on the calibration split before the end.")
    seed: int = Field(0, ge=0, le=2**31 - 1)
    augment: bool = False
    frozen_backbone: bool = Field(
        False,
        description="Train the concept heads and the label predictor alone, to convergence; edits are exact. Epochs, "
        "batches, learning rate and patience are not used.",
    )


class ExistingWeights(RequestBody):
    """A safetensors file sent to ``/uploads`` before, of the given architecture."""

    upload: Annotated[str, StringConstraints(min_length=1, max_length=64)]


class PretrainedWeights(RequestBody):
    """A safetensors file sent to ``/uploads`` before: a torchvision state dict, whose classifier is ignored."""

    upload: Annotated[str, StringConstraints(min_length=1, max_length=64)]


class ModelRequest(RequestBody):
    """A model to train on a data set, or to register with weights that exist."""

    id: Slug | None = Field(None, description="Chosen by the caller, or made up.")
    title: Title | None = None
    dataset: Slug
    architecture: Architecture
    training: Training = Training()
    weights: ExistingWeights | None = None
    pretrained: PretrainedWeights | None = Field(None, description="Where the training of the backbone starts.")


class RestoreRequest(RequestBody):
    """Return to an older version; ``reason`` is kept with the job and never copied to the history."""

    reason: Annotated[str, StringConstraints(max_length=2000)] | None = None


class AliasRequest(RequestBody):
    """Where an alias shall point."""

    version: VersionNumber


class AliasBody(AnswerBody):
    name: str
    version: int
    updated_at: datetime

    @classmethod
    def of(cls, alias: Alias) -> AliasBody:
        return cls(name=alias.name, version=alias.version, updated_at=alias.updated_at)


class AliasList(AnswerBody):
    aliases: list[AliasBody]


class ModelBody(AnswerBody):
    """``etag`` changes with each new version; moving an alias leaves it."""

    id: str
    title: str
    dataset: str
    architecture: dict[str, Any]
    training: dict[str, Any]
    latest_version: int | None
    etag: str
    aliases: dict[str, int]
    created_at: datetime

    @classmethod
    def of(cls, model: Model, aliases: dict[str, int]) -> ModelBody:
        return cls(
            id=model.id,
            title=model.title,
            dataset=model.dataset_id,
            architecture=model.architecture,
            training=model.training,
            latest_version=model.latest_version,
            etag=etag_of(model),
            aliases=aliases,
            created_at=model.created_at,
        )


class ModelList(AnswerBody):
    models: list[ModelBody]
    next_page_token: str | None


class VersionBody(AnswerBody):
    """``factors_version`` is the version that the curvature factors were fitted on."""

    model: str
    number: int
    parent: int | None
    job: UUID
    state: str
    concepts: list[Name]
    classes: list[Name]
    snapshot_sha256: str
    weights_sha256: str
    factors_sha256: str | None
    factors_version: int | None
    metrics: dict[str, Any]
    code_version: str
    created_at: datetime

    @classmethod
    def of(cls, version: Version) -> VersionBody:
        return cls(
            model=version.model_id,
            number=version.number,
            parent=version.parent,
            job=version.job_id,
            state=version.state,
            concepts=version.concepts,
            classes=version.classes,
            snapshot_sha256=version.snapshot_digest,
            weights_sha256=version.weights_digest,
            factors_sha256=version.factors_digest,
            factors_version=version.factors_version,
            metrics=version.metrics,
            code_version=version.code_version,
            created_at=version.created_at,
        )


class VersionList(AnswerBody):
    versions: list[VersionBody]
    next_page_token: str | None


def etag_of(model: Model) -> str:
    """Strong entity tag of the model's state as edits see it."""
    return f'"v{model.latest_version or 0}"'
