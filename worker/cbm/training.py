"""Sequential training: the concept predictor on concepts, then the label predictor on its probabilities."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from worker.cbm.arithmetic import batch_size, quick_type
from worker.cbm.concept_predictor import ConceptPredictor, build_concept_predictor
from worker.data.tensors import LabelledImages

Progress = Callable[[int, int], None]


def concept_losses(logits: Tensor, concepts: Tensor) -> Tensor:
    """Per-sample concept loss ``Σ_j m_j BCE(z_j, c_j)`` ``[B]``; unknown labels (−1) have ``m_j = 0``."""
    known = (concepts >= 0).to(logits.dtype)
    losses = binary_cross_entropy_with_logits(logits, concepts.clamp_min(0).to(logits.dtype), reduction="none")
    return (losses * known).sum(dim=1)


@torch.no_grad()
def predict_logits(model: nn.Module, images: Tensor, rows_at_a_time: int | None = None) -> Tensor:
    """Concept logits ``[n, k]`` in eval mode and in the model's own type: what is stored or judged by."""
    return _predicted(model, images, rows_at_a_time)


@torch.no_grad()
def predict_features(model: ConceptPredictor, images: Tensor) -> Tensor:
    """Penultimate features and a 1 for the bias ``[n, d + 1]``, as exact as :func:`predict_logits`."""
    features = _predicted(model.eval().backbone, images)
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def _predicted(module: nn.Module, images: Tensor, rows_at_a_time: int | None = None) -> Tensor:
    module.eval()
    chunks = torch.split(images, rows_at_a_time or batch_size(images.device))
    return torch.cat([module(chunk.contiguous(memory_format=torch.channels_last)) for chunk in chunks])


def train_concept_predictor(
    architecture: Mapping[str, Any],
    training: Mapping[str, Any],
    train: LabelledImages,
    calibration: LabelledImages,
    *,
    seed: int,
    progress: Progress,
    initial: ConceptPredictor | None = None,
) -> tuple[ConceptPredictor, dict[str, Any]]:
    """Minimise the concept objective by Adam with a cosine schedule; keep the epoch with the best calibration loss.

    Args:
        architecture: see :func:`build_concept_predictor`.
        training: ``epochs, batch_size, learning_rate, weight_decay, patience, augment``; ``weight_decay`` is the
            ``λ`` of the objective whose data term is summed over concepts and averaged over samples.
        seed: of initial weights, batch order and augmentation.
        progress: called with (epochs done, epochs).
        initial: where training starts and what is trained; if None a model of the architecture, drawn by the seed.

    Returns:
        The predictor in eval mode, and the history of the run.
    """
    device = train.images.device
    model = initial or build_concept_predictor(architecture, train.concepts.shape[1], seed=seed)
    model = model.to(device)
    quick = quick_type(model)
    generator = torch.Generator().manual_seed(seed)
    epochs, size = training["epochs"], min(training["batch_size"], len(train))
    batches_per_epoch = max(1, len(train) // size)  # a tail of few rows would make BatchNorm's statistics noise
    optimizer = torch.optim.Adam(
        model.parameters(), lr=training["learning_rate"], weight_decay=training["weight_decay"]
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches_per_epoch)
    best, best_epoch, best_state = float("inf"), 0, copy.deepcopy(model.state_dict())
    history: list[dict[str, float]] = []
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(train), generator=generator).to(device)
        total = torch.zeros((), device=device)
        for b in range(batches_per_epoch):
            rows = order[b * size : (b + 1) * size]
            images = train.images[rows]
            if training["augment"]:
                images = _shifted(images, generator)
            with torch.autocast(device.type, quick, enabled=quick == torch.bfloat16):
                logits = model(images.contiguous(memory_format=torch.channels_last))
            loss = concept_losses(logits.to(images.dtype), train.concepts[rows]).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += loss.detach()
        held_out = float(concept_losses(predict_logits(model, calibration.images), calibration.concepts).mean())
        history.append({"train_loss": float(total) / batches_per_epoch, "calibration_loss": held_out})
        progress(epoch + 1, epochs)
        if held_out < best:
            best, best_epoch, best_state = held_out, epoch, copy.deepcopy(model.state_dict())
        elif epoch - best_epoch >= training["patience"]:
            break
    model.load_state_dict(best_state)
    model.eval()
    return model, {"epochs_run": len(history), "best_epoch": best_epoch + 1, "history": history}


def _shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to a sixteenth of its width, edges repeated: the mildest of augmentations."""
    reach = max(1, images.shape[-1] // 16)
    padded = nn.functional.pad(images, (reach, reach, reach, reach), mode="replicate")
    dy, dx = torch.randint(0, 2 * reach + 1, (2, len(images)), generator=generator).tolist()
    height, width = images.shape[-2:]
    return torch.stack(
        [padded[i, :, y : y + height, x : x + width] for i, (y, x) in enumerate(zip(dy, dx, strict=True))]
    )
