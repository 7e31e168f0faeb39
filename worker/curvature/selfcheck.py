"""Do a layer's recorded inputs and output gradients explain its parameters' gradient?

Factors rest on ``∂loss/∂[W | b] = Σ_n Σ_t s_nt a_ntᵀ``. That fails, without any other sign, where a weight is also used
outside its layer's call (a tied weight passed to a function), or where a hook changes what the layer reads or returns.
So it is checked once per fit, on a few rows, against autograd.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from worker.curvature.capture import Capture
from worker.curvature.errors import UnsupportedLayerError
from worker.curvature.layers import Coverage, GroupedLayer, NormLayer
from worker.curvature.vectors import ParameterVector

ROWS = 4

_TOLERANCE = {torch.float64: 1e-8}
"""Relative to ``‖s‖ ‖a‖``, which bounds the gradient."""

_SINGLE_TOLERANCE = 2e-3  # TF32 convolutions, cuDNN's default, have 10 bits


def require_explained_gradients(
    model: nn.Module, coverage: Coverage, x: Tensor, residual: Callable[[Tensor], Tensor]
) -> None:
    """Compare both sides on ``x`` ``[B, ...]``; ``residual`` makes ``[B, k]`` of the logits, to be sent back.

    Raises:
        UnsupportedLayerError: naming every layer whose parameters' gradient is not explained.
    """
    capture = Capture(model, {layer.name: layer.module for layer in coverage.all}, x)
    cotangent = residual(capture.logits.detach())
    gradients = capture.output_gradients(cotangent, last=False)
    inputs = {layer.name: capture.input_of(layer.name) for layer in coverage.all}
    names = coverage.parameter_names
    found = torch.autograd.grad(capture.logits, [model.get_parameter(name) for name in names], cotangent)
    expected = dict(zip(names, found, strict=True))
    tolerance = _TOLERANCE.get(x.dtype, _SINGLE_TOLERANCE)
    unexplained: list[str] = []
    for layer in coverage.all:
        x_of_layer, s = inputs[layer.name], gradients[layer.name]
        if isinstance(layer, NormLayer):
            scale, shift = layer.sample_gradients(x_of_layer, s).sum(0).chunk(2)
            explained: ParameterVector = {layer.weight: scale, layer.bias: shift}
            bound = s.norm() * (x_of_layer.norm() + s.numel() ** 0.5)
        else:
            a, rows = layer.patches(x_of_layer), layer.gradient_rows(s)
            if isinstance(layer, GroupedLayer):
                matrix = torch.einsum("btgo,btgi->goi", rows, a).flatten(0, 1)
            else:
                matrix = (rows.flatten(0, 1).mT @ a.flatten(0, 1))[:, layer.columns.to(a.device)]
            explained = layer.parameters.split(matrix)
            bound = rows.norm() * a.norm()
        error = sum((expected[name] - value).square().sum() for name, value in explained.items()) ** 0.5
        if bool(error > tolerance * bound):  # not finite: left to the moments, which name it
            unexplained.append(layer.name)
    if unexplained:
        raise UnsupportedLayerError(
            "its inputs and outputs do not explain the gradient (is a weight used elsewhere, or a hook at work?): "
            + ", ".join(unexplained)
        )
