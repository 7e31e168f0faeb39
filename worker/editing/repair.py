"""A short warm pass over the edited data set, for when the rest of the data paid for an edit."""

from __future__ import annotations

import torch

from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages


def warm_pass(
    model: ConceptPredictor,
    rows: LabelledImages,
    unfinished: ParameterVector,
    *,
    learning_rate: float,
    weight_decay: float,
    batch_size: int,
    share: float = 0.25,
    seed: int = 0,
) -> int:
    """``share`` of an epoch in eval mode; returns how many were taken.

    ``unfinished`` is ``∇J_before(θ̂)``: what training left when it stopped, in eval mode always some L2 that training
    held in balance. Subtracted from every gradient, as in the definition of ``u``, it keeps the pass about the edit.

    BatchNorm keeps its statistics, so that what was measured before still describes the same function. Adam is new
    each time: its first steps are about ``learning_rate`` long per weight, which bounds the whole pass.
    """
    model.eval()
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    optimizer = torch.optim.Adam(parameters.values(), lr=learning_rate, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows), generator=generator).to(rows.sample_ids.device)
    batch_size = min(batch_size, len(rows))
    steps = max(1, round(share * len(rows) / batch_size))
    for b in range(steps):
        chosen = order[b * batch_size : (b + 1) * batch_size]
        loss = concept_losses(model(rows.images[chosen]), rows.concepts[chosen]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                parameter.grad -= unfinished[name]
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return steps
