"""Reference models for RMIA: what training makes of a row, with it and without it.

They are held in memory and never stored: some were trained on removed rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from worker.computing.frame import Frame
from worker.computing.measuring import Measured, edited_groups
from worker.computing.training import train_both
from worker.computing.workbench import Workbench
from worker.data.tensors import LabelledImages
from worker.evidence.audit import Losses, References
from worker.evidence.design import inclusion, population_split, reference_seeds

STAGE = "reference_models"


def trained_references(bench: Workbench, frame: Frame, count: int, seed: int) -> References:
    """Train ``count`` reference models on the edited version's train rows and halves of the candidates.

    Candidates are the removed rows and all test rows, the population's too: each is in the data of about half of the
    references (none, if there is one). The kept rows are in all of them: an attacker who knows every other row is
    stronger than the paper's, who draws references' data anew, and the references are as large as the model they
    stand for. With a count of 0 nothing is trained and RMIA compares with the population only.
    """
    groups = edited_groups(frame)
    removed, test = _in_edited_columns(frame, groups["removed"]), frame.test_after
    kept, calibration = (_in_edited_columns(frame, rows) for rows in (frame.train.after, frame.calibration))
    candidates = removed.joined(test)
    inside = inclusion(count, len(candidates), seed)
    losses: list[Losses] = []
    for r, training_seed in enumerate(reference_seeds(count, seed)):
        chosen = torch.from_numpy(np.flatnonzero(inside[r])).to(candidates.sample_ids.device)
        model, label_predictor, _ = train_both(
            bench, kept.joined(candidates.take(chosen)), calibration, training_seed, STAGE, (r, count)
        )
        losses.append(Measured(frame, groups, model, label_predictor, edited=True).losses())
    population, non_members = population_split(len(test), seed)
    return References(population, non_members, losses, inside[:, : len(removed)], inside[:, len(removed) :])


def _in_edited_columns(frame: Frame, rows: LabelledImages) -> LabelledImages:
    return replace(rows, concepts=rows.concepts[:, frame.kept])
