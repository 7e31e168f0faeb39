"""Dense references, built from ``torch.func`` Jacobians and independent of the code under test."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from worker.curvature.passes import Batch, Batches


def random_norms(model: nn.Module) -> nn.Module:
    """Give every BatchNorm statistics and affine parameters that are not the identity, and switch to eval mode."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight, 1, 0.3)
                nn.init.normal_(module.bias, 0, 0.3)
    return model.eval()


def conv_net(*, inplace: bool = True) -> nn.Module:
    """Images ``[B, 1, 6, 6]`` to 3 logits: stride, padding, dilation, bias or none, BatchNorm, in-place ReLU."""
    return random_norms(
        nn.Sequential(
            nn.Conv2d(1, 3, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(inplace=inplace),
            nn.Conv2d(3, 4, 2, padding="same", dilation=2),
            nn.ReLU(inplace=inplace),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(16, 3),
        )
    )


def batches_of(
    x: Tensor, mask: Tensor | None = None, *, size: int | None = None, rows: Tensor | None = None
) -> Batches:
    """The rows in batches of ``size`` (all in one if None)."""
    indices = torch.arange(len(x)) if rows is None else rows
    step = size or len(x)

    def make() -> list[Batch]:
        parts = [slice(start, start + step) for start in range(0, len(x), step)]
        return [(x[part], None if mask is None else mask[part], indices[part]) for part in parts]

    return make


def jacobian(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """``∂z_ij/∂θ`` by parameter, ``[n, k, *shape]``."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    outputs: Callable[[Mapping[str, Tensor]], Tensor] = lambda values: functional_call(model, dict(values), (x,))  # noqa: E731
    result: dict[str, Tensor] = jacrev(outputs)(parameters)
    return result


def flat_jacobian(model: nn.Module, x: Tensor, names: tuple[str, ...] | None = None) -> Tensor:
    """``[n, k, P]`` in the order of ``names`` (all parameters if None)."""
    parts = jacobian(model, x)
    return torch.cat([parts[name].flatten(2) for name in names or tuple(parts)], dim=2)


def layer_jacobian(model: nn.Module, x: Tensor, layer: str) -> Tensor:
    """``[n, k, d_out, d_in]`` in the joint matrix ``[W | b]`` of one layer."""
    parts = jacobian(model, x)
    weight = parts[f"{layer}.weight"].flatten(3)
    if f"{layer}.bias" not in parts:
        return weight
    return torch.cat([weight, parts[f"{layer}.bias"][..., None]], dim=3)


def bernoulli(model: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """``m p (1 − p)``, ``[n, k]``."""
    p = torch.sigmoid(model(x).detach())
    return p * (1 - p) * (1 if mask is None else mask)


def gauss_newton(J: Tensor, weights: Tensor) -> Tensor:
    """``(1/n) Σ_i J_iᵀ diag(weights_i) J_i`` for ``J`` ``[n, k, ...]``, flattened to ``[P, P]``."""
    J = J.flatten(2)
    return torch.einsum("nkp,nk,nkq->pq", J, weights, J) / len(J)


def flatten(vector: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in vector.values()])


def random_vector(model: nn.Module, names: tuple[str, ...] | None = None) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    return {name: torch.randn_like(parameters[name]) for name in names or tuple(parameters)}


def assemble(operator: Callable[[dict[str, Tensor]], Mapping[str, Tensor]], like: Mapping[str, Tensor]) -> Tensor:
    """The matrix of a linear operator on parameter vectors, column by column."""
    size = sum(value.numel() for value in like.values())
    columns = []
    for unit in torch.eye(size):
        parts = unit.split([value.numel() for value in like.values()])
        vector = {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
        columns.append(flatten(operator(vector)))
    return torch.stack(columns, dim=1)
