"""Layer inputs and pre-activation gradients of one forward pass, without touching parameters or activations.

Gradients are asked for at *edges* of the autograd graph, taken when the layer returns. An in-place ReLU
behind the layer rewrites the activation but not the edge, so the gradient stays that of the pre-activation.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from worker.curvature.errors import UnsupportedLayerError


class Capture:
    """One recorded forward pass of ``model`` on ``x`` ``[B, C, H, W]``.

    Attributes:
        logits: ``[B, k]``, attached to the graph.
        inputs: layer inputs by layer name, detached.

    Raises:
        UnsupportedLayerError: a layer ran not exactly once, so that its parameters are unused or shared over
            calls.
        ValueError: the model's output is no matrix of one row per sample.
    """

    def __init__(self, model: nn.Module, modules: Mapping[str, nn.Module], x: Tensor) -> None:
        self.inputs: dict[str, Tensor] = {}
        self._versions: dict[str, int] = {}
        self._edges: dict[str, GradientEdge] = {}
        hooks = [module.register_forward_hook(self._recorder(name)) for name, module in modules.items()]
        try:
            with torch.enable_grad():
                self.logits: Tensor = model(x)
        finally:
            for hook in hooks:
                hook.remove()
        if unused := [name for name in modules if name not in self.inputs]:
            raise UnsupportedLayerError(f"not used by the forward pass (freeze its parameters): {', '.join(unused)}")
        if self.logits.dim() != 2 or self.logits.shape[0] != x.shape[0]:
            raise ValueError(f"the model must map [B, ...] to logits [B, k], not to {tuple(self.logits.shape)}")

    def _recorder(self, name: str):  # type: ignore[no-untyped-def]
        def record(_module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            if name in self.inputs:
                raise UnsupportedLayerError(f"{name} runs more than once per forward pass")
            self.inputs[name] = arguments[0].detach()
            self._versions[name] = arguments[0]._version
            self._edges[name] = get_gradient_edge(output)

        return record

    def input_of(self, name: str) -> Tensor:
        """The input a layer saw; refuses one that was overwritten in place after the layer ran."""
        if self.inputs[name]._version != self._versions[name]:
            raise UnsupportedLayerError(f"the input of {name} is overwritten in place after it ran")
        return self.inputs[name]

    def output_gradients(self, residual: Tensor, *, last: bool) -> dict[str, Tensor]:
        """``Σ_ij residual_ij · ∂z_ij/∂(layer output)`` by layer name, each shaped like the layer's output.

        Samples do not interact in eval mode, so slice ``i`` is the gradient of sample ``i`` alone. ``last``
        frees the graph.
        """
        gradients = torch.autograd.grad(
            self.logits,
            list(self._edges.values()),
            residual,
            retain_graph=not last,
            allow_unused=True,
            materialize_grads=False,
        )
        found: dict[str, Tensor] = {}
        for name, gradient in zip(self._edges, gradients, strict=True):
            if gradient is None:
                raise UnsupportedLayerError(f"the logits do not depend on {name} (freeze its parameters)")
            found[name] = gradient
        return found
