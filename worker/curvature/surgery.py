"""Fitting a factor to a head that lost or gained outputs.

The results stand in for a refit until there is one: they precondition, they are no estimate of the new
    curvature. The backbone's
factors stay as they are and still contain what the dropped outputs sent back.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from worker.curvature.blocks import LayerFactor
from worker.curvature.eigen import Eigenbasis, decompose
from worker.curvature.factors import Factors


def drop_outputs(factors: Factors, layer_name: str, rows: Sequence[int]) -> Factors:
    """Delete the output rows ``rows`` of the Linear ``layer_name`` from its factor.

    The kept block of ``S`` is decomposed anew. Its eigenvectors differ from the old ones, and the old fit
    holds only squares in the old basis, so ``Λ*`` cannot be computed without data: it becomes the diagonal,
    in the new basis, of the old factor restricted to the kept rows, ``(W ∘ W) Λ*`` with ``W = Q_S'ᵀ R Q_S``
    and ``R`` the selection of rows. That is the closest factor in that basis to the sliced one, but it treats
    the old coefficients as uncorrelated; hence a preconditioner only.

    Raises:
        KeyError: no such layer.
        ValueError: a row out of range, or no row left.
    """
    layer = factors.layers[layer_name]
    d_out = layer.parameters.shape[0]
    if outside := [row for row in rows if not 0 <= row < d_out]:
        raise ValueError(f"{layer_name} has outputs 0..{d_out - 1}, not {outside}")
    kept = sorted(set(range(d_out)) - set(rows))
    if not kept:
        raise ValueError(f"dropping every output of {layer_name} leaves no layer")
    old = layer.S.vectors[kept]
    basis = decompose((old * layer.S.values) @ old.mT, layer_name).to(old.device, old.dtype)
    mixing = (basis.vectors.mT @ old).square()
    changed = _with_outputs(layer, len(kept), S=basis, corrected=mixing @ layer.corrected)
    return _replaced(factors, changed, f"dropped {d_out - len(kept)} outputs of {layer_name}")


def add_outputs(factors: Factors, layer_name: str, count: int) -> Factors:
    """Append ``count`` output rows to the Linear ``layer_name``, each with the mean curvature of the present
    rows.

    Raises:
        KeyError: no such layer.
        ValueError: ``count`` is not positive.
    """
    if count < 1:
        raise ValueError(f"cannot add {count} outputs")
    layer = factors.layers[layer_name]
    d_out = layer.parameters.shape[0]
    values = torch.cat([layer.S.values, layer.S.values.sum().div(d_out).expand(count)])
    vectors = layer.S.vectors.new_zeros(d_out + count, layer.S.vectors.shape[1] + count)
    vectors[:d_out, :-count] = layer.S.vectors
    vectors[d_out:, -count:] = torch.eye(count)
    corrected = torch.cat([layer.corrected, layer.corrected.sum(0, keepdim=True).div(d_out).expand(count, -1)])
    changed = _with_outputs(layer, d_out + count, S=Eigenbasis(vectors, values), corrected=corrected)
    return _replaced(factors, changed, f"added {count} outputs to {layer_name}")


def _with_outputs(layer: LayerFactor, outputs: int, *, S: Eigenbasis, corrected: Tensor) -> LayerFactor:
    if len(layer.parameters.weight_shape) != 2:
        raise ValueError(f"{layer.name} is no Linear layer")
    shape = (outputs, layer.parameters.weight_shape[1])
    return replace(layer, parameters=replace(layer.parameters, weight_shape=shape), S=S, corrected=corrected)


def _replaced(factors: Factors, layer: LayerFactor, note: str) -> Factors:
    record = replace(factors.record, adaptations=(*factors.record.adaptations, note))
    return replace(factors, layers={**factors.layers, layer.name: layer}, record=record)
