"""Fitted blocks as dense matrices. Eigenvectors of tied eigenvalues may differ between equal fits, blocks may not."""

import torch
from torch import Tensor

from worker.curvature.blocks import GroupedFactor, LayerFactor, NormFactor
from worker.curvature.factors import Block, Factors


def dense_block(block: Block) -> Tensor:
    """``[P, P]``, or ``[G, P, P]`` of a convolution with groups; rows of ``[W | b]`` one after the other."""
    if isinstance(block, NormFactor):
        return block.block.vectors * block.block.values @ block.block.vectors.mT
    Q = torch.einsum("...os,...ia->...oisa", block.S.vectors, block.A.vectors).flatten(-2).flatten(-3, -2)
    return Q * block.corrected.flatten(-2)[..., None, :] @ Q.mT


def kfac_block(factor: LayerFactor | GroupedFactor) -> Tensor:
    """The same without the correction of the eigenvalues."""
    A = factor.A.vectors * factor.A.values[..., None, :] @ factor.A.vectors.mT
    S = factor.S.vectors * factor.S.values[..., None, :] @ factor.S.vectors.mT
    product = torch.einsum("...op,...ij->...oipj", S, A)
    return product.flatten(-2).flatten(-3, -2)


def assert_same_blocks(first: Factors, second: Factors, *, tolerance: float = 1e-10) -> None:
    """Equal curvature up to ``tolerance`` of each block's largest entry."""
    assert [block.name for block in first.blocks] == [block.name for block in second.blocks]
    for one, other in zip(first.blocks, second.blocks, strict=True):
        expected = dense_block(other).double()
        largest = float(expected.abs().max())
        torch.testing.assert_close(dense_block(one).double(), expected, rtol=0, atol=tolerance * largest)
