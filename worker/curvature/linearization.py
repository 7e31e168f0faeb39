"""A model linearised at its parameters: products with the Jacobian and its transpose, on fixed inputs.

``J v`` goes forward in tangents, ``Jᵀ r`` backward through a graph that is built once. What Linear, Conv2d
and BatchNorm layers
compute at the point of linearisation never changes, so it is cached: a product runs two convolutions per
    layer (input tangent,
weight tangent) where plain forward-mode differentiation runs three. Whatever lies between the layers is left
to torch's own forward-mode rules.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional

from worker.curvature.layers import NORMS, eval_statistics, is_plain
from worker.curvature.vectors import ParameterMapping, ParameterVector

with warnings.catch_warnings():
    # make_dual imports this on first use, which compiles decompositions with an interface that torch deprecates.
    warnings.simplefilter("ignore", FutureWarning)
    import torch._decomp.decompositions_for_jvp

_make_dual: Callable[[Tensor, Tensor], Tensor] = forward_ad.make_dual
_unpack_dual: Callable[[Tensor], forward_ad.UnpackedDualTensor] = forward_ad.unpack_dual


@dataclass(eq=False)
class _Primal:
    """What one layer saw and returned at the point of linearisation."""

    input: Tensor
    output: Tensor
    version: int
    overwritten: bool = False
    calls: int = 1


class Linearization:
    """``z(θ + v) ≈ logits + J v`` for inputs ``x`` ``[B, ...]``.

    Args:
        model: in eval mode. It must be private to its linearisations: parameters must not change while they
            live, and layers' ``forward`` are replaced for the duration of :meth:`jvp`.
        x: inputs.
        names: the parameters that vary, all with ``requires_grad``; the others are constants.

    Attributes:
        logits: ``[B, k]``, detached.
    """

    def __init__(self, model: nn.Module, x: Tensor, names: Sequence[str]) -> None:
        self._model, self._x, self._names = model, x, tuple(names)
        self._own = dict(model.named_parameters())
        self._layers = {name: module for name, module in model.named_modules() if is_plain(module)}
        self._primals: dict[str, _Primal] = {}
        copies: dict[str, Tensor] = {}
        hooks = [module.register_forward_hook(self._recorder(name, copies)) for name, module in self._layers.items()]
        try:
            with torch.enable_grad():
                self._output: Tensor = model(x)
        finally:
            for hook in hooks:
                hook.remove()
        self.logits = self._output.detach()
        for name, primal in list(self._primals.items()):
            if primal.calls > 1:
                del self._primals[name]
            elif primal.output._version != primal.version:
                primal.output, primal.overwritten = copies[name], True
        ruled = {f"{layer}.{kind}" for layer in self._primals for kind in ("weight", "bias")}
        self._generic = [name for name in names if name not in ruled]

    def jvp(self, vector: ParameterMapping) -> Tensor:
        """``J v``, ``[B, k]``, for a vector with the linearisation's names."""
        with torch.no_grad(), forward_ad.dual_level(), self._tangent_rules(vector):
            duals = {name: _make_dual(self._own[name].detach(), vector[name]) for name in self._generic}
            output = functional_call(self._model, duals, (self._x,)) if duals else self._model(self._x)
            tangent: Tensor | None = _unpack_dual(output).tangent
        return torch.zeros_like(self.logits) if tangent is None else tangent

    def vjp(self, cotangent: Tensor) -> ParameterVector:
        """``Jᵀ r`` for ``r`` ``[B, k]``."""
        parameters = [self._own[name] for name in self._names]
        gradients = torch.autograd.grad(
            self._output, parameters, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return dict(zip(self._names, gradients, strict=True))

    def _recorder(
        self, name: str, copies: dict[str, Tensor]
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def record(_module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            if name in self._primals:
                self._primals[name].calls += 1
                return
            kept = output.detach()
            self._primals[name] = _Primal(arguments[0].detach(), kept, kept._version)
            copies[name] = kept.clone()  # an in-place activation may overwrite the output; dropped again if none does

        return record

    @contextmanager
    def _tangent_rules(self, vector: ParameterMapping) -> Iterator[None]:
        """Let the layers return their cached output with the tangent for ``vector``."""
        for name, primal in self._primals.items():
            weight, bias = vector.get(f"{name}.weight"), vector.get(f"{name}.bias")
            self._layers[name].forward = _tangent_forward(self._layers[name], primal, weight, bias)
        try:
            yield
        finally:
            for name in self._primals:
                del self._layers[name].forward


def _tangent_forward(
    module: nn.Module, primal: _Primal, weight: Tensor | None, bias: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """A layer's ``forward`` on dual tensors, for parameter tangents ``weight`` and ``bias`` (None:
    constant)."""

    def forward(x: Tensor) -> Tensor:
        incoming: Tensor | None = _unpack_dual(x).tangent
        output = primal.output.clone() if primal.overwritten else primal.output
        tangent = _tangent(module, primal.input, incoming, weight, bias)
        return output if tangent is None else _make_dual(output, tangent)

    return forward


def _tangent(
    module: nn.Module, x: Tensor, incoming: Tensor | None, weight: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """Tangent of ``layer(x; W, b)``, which is linear in ``x`` and in ``(W, b)``: ``layer(x; Ẇ, ḃ) + layer(ẋ;
    W, 0)``."""
    if isinstance(module, NORMS):
        return _norm_tangent(module, x, incoming, weight, bias)
    linear = module._conv_forward if isinstance(module, nn.Conv2d) else functional.linear
    constant = module.get_parameter("weight")
    tangent: Tensor | None = None
    if weight is not None or bias is not None:
        tangent = linear(x, torch.zeros_like(constant) if weight is None else weight, bias)
    if incoming is not None:
        through = linear(incoming, constant, None)
        tangent = through if tangent is None else tangent.add_(through)
    return tangent


def _norm_tangent(
    module: nn.modules.batchnorm._BatchNorm,
    x: Tensor,
    incoming: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor | None:
    """In eval mode BatchNorm is ``γ (x − μ)/σ + β`` per channel with constant μ and σ."""
    mean, inverse_deviation = eval_statistics(module)
    channels = (1, -1, *([1] * (x.dim() - 2)))
    tangent: Tensor | None = None
    if weight is not None or bias is not None:
        scale = torch.zeros_like(mean) if weight is None else weight * inverse_deviation
        shift = -mean * scale if bias is None else bias - mean * scale
        tangent = torch.addcmul(shift.view(channels), x, scale.view(channels))
    if incoming is not None:
        slope = inverse_deviation if module.weight is None else module.weight * inverse_deviation
        through = slope.view(channels)
        tangent = incoming * through if tangent is None else tangent.addcmul_(incoming, through)
    return tangent
