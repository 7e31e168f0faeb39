"""Vectors in parameter space, as dictionaries from qualified parameter names to tensors.

Operations never modify their arguments. Two vectors combine only if they have the same names; a mismatch
raises ``ValueError`` with the names, since a silently ignored entry would be a silently unedited parameter.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

ParameterVector = dict[str, Tensor]
ParameterMapping = Mapping[str, Tensor]


def trainable(model: nn.Module) -> tuple[str, ...]:
    """Names of the parameters with ``requires_grad``, in the model's order."""
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def from_parameters(model: nn.Module, names: Iterable[str] | None = None) -> ParameterVector:
    """The parameters themselves as a vector, detached copies; ``names`` defaults to the trainable ones."""
    parameters = dict(model.named_parameters())
    return {name: parameters[name].detach().clone() for name in (trainable(model) if names is None else names)}


def require_same_names(first: ParameterMapping, second: ParameterMapping) -> None:
    """Raise ``ValueError`` naming the entries that only one of the two vectors has."""
    if difference := first.keys() ^ second.keys():
        raise ValueError(f"vectors differ in their parameters: {', '.join(sorted(difference))}")


def zeros_like(vector: ParameterMapping) -> ParameterVector:
    """The zero vector with the same names, shapes, types and devices."""
    return {name: torch.zeros_like(value) for name, value in vector.items()}


def scale(factor: float, vector: ParameterMapping) -> ParameterVector:
    """``factor · vector``."""
    return {name: factor * value for name, value in vector.items()}


def axpy(factor: float, x: ParameterMapping, y: ParameterMapping) -> ParameterVector:
    """``factor · x + y``."""
    require_same_names(x, y)
    return {name: torch.add(value, x[name], alpha=factor) for name, value in y.items()}


def dot(x: ParameterMapping, y: ParameterMapping) -> float:
    """Euclidean inner product; the sums per tensor are added in float64."""
    require_same_names(x, y)
    if not x:
        return 0.0
    parts = [torch.dot(value.reshape(-1), y[name].reshape(-1)).double() for name, value in x.items()]
    return float(torch.stack(parts).sum())


def norm(vector: ParameterMapping) -> float:
    """Euclidean norm."""
    return float(dot(vector, vector) ** 0.5)


def restrict(vector: ParameterMapping, names: Iterable[str]) -> ParameterVector:
    """The entries called ``names``, in that order; raises ``KeyError`` for a name the vector lacks."""
    return {name: vector[name] for name in names}


def zero_rows(vector: ParameterMapping, rows: Sequence[int], names: Iterable[str]) -> ParameterVector:
    """A copy in which the given rows (first axis) of the parameters ``names`` are zero.

    With the weight and bias of the head this is the projection that keeps a step out of the rows of dropped
    concepts.
    """
    result = dict(vector)
    for name in names:
        result[name] = vector[name].index_fill(0, torch.tensor(rows, dtype=torch.long, device=vector[name].device), 0)
    return result


def ravel(vector: ParameterMapping) -> Tensor:
    """One flat tensor ``[P]`` with the entries in the vector's order."""
    return torch.cat([value.reshape(-1) for value in vector.values()])


def unravel(flat: Tensor, like: ParameterMapping) -> ParameterVector:
    """The inverse of :func:`ravel`: views into ``flat`` with the names and shapes of ``like``."""
    parts = torch.split(flat, [value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
