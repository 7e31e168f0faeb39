"""Random rows, tiny nets and dense objectives in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData

CONCEPTS, CLASSES, SIZE = 4, 3, 6


def random_rows(n: int, *, first_id: int = 0, seed: int = 0, unknown: float = 0.2) -> LabelledImages:
    """Images ``[n, 1, 6, 6]`` with labels that can be learned from them, some unknown, in no order of ids."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 1, SIZE, SIZE, generator=generator, dtype=torch.float64)
    signal = images.flatten(1)[:, :CONCEPTS] + 0.5 * torch.randn(n, CONCEPTS, generator=generator, dtype=torch.float64)
    concepts = (signal > 0).long()
    concepts[torch.rand(n, CONCEPTS, generator=generator) < unknown] = UNKNOWN
    return LabelledImages(
        images=images,
        concepts=concepts,
        classes=torch.randint(CLASSES, (n,), generator=generator),
        sample_ids=first_id + torch.randperm(n, generator=generator),
    )


def tiny_net(seed: int = 0) -> ConceptPredictor:
    """Convolution, BatchNorm with statistics that are not the identity, head; eval mode."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(3)
    backbone = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, bias=False), norm, nn.ReLU(), nn.Flatten())
    model = ConceptPredictor(backbone, 12, CONCEPTS).double()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_(0, 0.3)
    norm.running_var.uniform_(0.5, 2)
    nn.init.normal_(norm.weight, 1, 0.3)
    nn.init.normal_(norm.bias, 0, 0.3)
    return model.eval()


def linear_net(seed: int = 0) -> ConceptPredictor:
    """Logistic regression on the pixels: a convex objective."""
    torch.manual_seed(seed)
    return ConceptPredictor(nn.Flatten(), SIZE * SIZE, CONCEPTS).double().eval()


def objective(model: nn.Module, rows: LabelledImages, weight_decay: float) -> Tensor:
    """``J``, written out: mean over samples of the sum over known concepts, plus L2 of all parameters."""
    p, c = torch.sigmoid(model(rows.images)), rows.concepts
    likelihood = torch.where(c == 1, p, torch.where(c == 0, 1 - p, torch.ones_like(p)))
    total = -torch.log(likelihood).sum()
    squares = torch.stack([value.square().sum() for value in model.parameters()]).sum()
    return total / len(rows) + 0.5 * weight_decay * squares


def objective_gradient(model: nn.Module, rows: LabelledImages, weight_decay: float) -> ParameterVector:
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(objective(model, rows, weight_decay), list(parameters.values()))
    return dict(zip(parameters, gradients, strict=True))


def edited(
    before: LabelledImages,
    *,
    fixed: Sequence[tuple[int, int, int]] = (),
    removed: Sequence[int] = (),
    added: LabelledImages | None = None,
    dropped: tuple[int, ...] = (),
    new: tuple[int, ...] = (),
) -> EditedData:
    """All operations applied; ``fixed`` are (position, concept, value), ``removed`` positions. The order changes.

    The labels of new concepts are those of ``before``, which is given without them.
    """
    concepts = before.concepts.clone()
    for position, concept, value in fixed:
        concepts[position, concept] = value
    stay = torch.tensor([i for i in range(len(before)) if i not in set(removed)])
    after = replace(before, concepts=concepts).take(stay)
    if added is not None:
        after = after.joined(added)
    after.concepts[:, list(dropped)] = UNKNOWN
    without = before.concepts.clone()
    without[:, list(new)] = UNKNOWN
    before = replace(before, concepts=without)
    return EditedData(before, after.take(torch.arange(len(after)).flip(0)), dropped, new)


def fitted_net(rows: LabelledImages, weight_decay: float) -> ConceptPredictor:
    """A tiny net that fits the rows better than others."""
    model = tiny_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=weight_decay)
    for _ in range(60):
        optimizer.zero_grad()
        concept_losses(model(rows.images), rows.concepts).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model
