"""Membership attack by loss: can removed rows be told from rows the model never saw?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

Losses = NDArray[np.floating[Any]]


def loss_attack_auc(members: Losses, non_members: Losses) -> float:
    """Area under the ROC curve of the attack "a lower loss means a member" (Yeom et al. 2018).

    Args:
        members: per-row losses ``[m]`` of rows that were trained on.
        non_members: per-row losses ``[n]`` of rows that were not.

    Returns:
        0.5 when the attack learns nothing, 1 when it is always right; below 0.5 members look *less* fitted than
        unseen rows.

    Raises:
        ValueError: a side is empty.
    """
    if not len(members) or not len(non_members):
        raise ValueError("an attack needs rows on both sides")
    truth = np.concatenate([np.ones(len(members)), np.zeros(len(non_members))])
    return float(roc_auc_score(truth, -np.concatenate([members, non_members])))
