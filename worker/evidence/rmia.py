"""RMIA, the robust membership inference attack (Zarifzadeh, Liu and Shokri 2024).

A row ``x`` is compared with rows ``z`` of a population that nobody trained on. How much likelier is ``x`` under the
model than it is in general, and is that more than for ``z``?

    LR(x, z) = (Pr(x|θ) / Pr(x)) / (Pr(z|θ) / Pr(z)),    score(x) = share of z with LR(x, z) ≥ γ.

``Pr(x)`` is an average over reference models. *Online*: half the weight on those that were trained with ``x`` and half
on those without. *Offline*, when all are without it: ``(1 + a)/2 · Pr_out(x) + (1 − a)/2``, which is that average when
being trained on moves a likelihood the part ``1 − a`` of its way to 1; ``a = 0.3`` is the paper's for CIFAR-10. Rows
``z`` are treated exactly as rows ``x``. With no reference models at all every ``Pr`` is 1.

For one model the score grows with ``Pr(x|θ)/Pr(x)``, so the population and ``γ`` decide only what scores are tied, not
how rows are ordered. It follows that without reference models RMIA is the loss attack, up to ties and to how rows with
few known concepts compare: it is the reference models that make it stronger.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from worker.evidence.auc import FloatArray

OFFLINE_A = 0.3
GAMMA = 1.0

Mask = NDArray[np.bool_]


def log_prior(log_likelihoods: FloatArray, trained_on: Mask, a: float = OFFLINE_A) -> FloatArray:
    """``log Pr(x)`` of rows, ``[n]``: online for rows that some references know and others do not, else offline.

    Args:
        log_likelihoods: of each row under each reference model, ``[K, n]``.
        trained_on: whether the reference was trained on the row, ``[K, n]``.
        a: of the offline approximation, in [0, 1].

    Raises:
        ValueError: every reference was trained on some row, so nothing is known of a model without it.
    """
    references, n = log_likelihoods.shape
    if not references:
        return np.zeros(n)
    if bool(trained_on.all(axis=0).any()):
        raise ValueError("a row is in every reference model's data")
    outside = _log_mean(log_likelihoods, ~trained_on)
    inside = _log_mean(log_likelihoods, trained_on)
    online = np.logaddexp(inside, outside) - np.log(2)
    with np.errstate(divide="ignore"):  # log 0 = −∞ where a = 1
        offline = np.logaddexp(np.log((1 + a) / 2) + outside, np.log((1 - a) / 2))
    return np.asarray(np.where(trained_on.any(axis=0), online, offline), dtype=np.float64)


def rmia_scores(log_ratios: FloatArray, population: FloatArray, gamma: float = GAMMA) -> FloatArray:
    """Scores of rows, ``[n]``: shares of the population over which their likelihood ratio is at least ``gamma``.

    Args:
        log_ratios: ``log Pr(x|θ) − log Pr(x)`` of the rows.
        population: the same of the population's rows.

    Raises:
        ValueError: the population is empty.
    """
    if not len(population):
        raise ValueError("RMIA needs a population")
    ascending = np.sort(population)
    beaten = np.searchsorted(ascending, log_ratios - np.log(gamma), side="right")
    return np.asarray(beaten / len(ascending), dtype=np.float64)


def _log_mean(values: FloatArray, of: Mask) -> FloatArray:
    """``log`` of the mean of ``exp(values)`` over the masked entries of each column; −∞ where there are none."""
    weights: NDArray[Any] = of.astype(np.float64)
    with np.errstate(divide="ignore"):
        total = logsumexp(np.where(of, values, -np.inf), axis=0)
        return np.asarray(total - np.log(np.maximum(weights.sum(axis=0), 1.0)), dtype=np.float64)
