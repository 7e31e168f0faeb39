"""Which layers have curvature factors, and how their inputs and output gradients become matrices.

Linear and Conv2d (any stride, padding, dilation; with or without bias) get a Kronecker-factored block over the
joint matrix ``[W | b]`` of shape ``[d_out, d_in]``, where ``d_in`` counts the bias column. A Conv2d with several
groups has such a block for every group, and an exact one where a group has a single output (depthwise). The affine
parameters of a BatchNorm get a small exact block. Everything else with trainable parameters is refused by its
qualified name.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker.curvature.errors import TrainingModeError, UnsupportedLayerError
from worker.curvature.vectors import ParameterMapping, ParameterVector

NormPolicy = Literal["exact", "frozen"]
"""``exact``: BatchNorm's scale and shift get their own 2C×2C block. ``frozen``: they are left out and must
not be moved."""

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_BATCH_DEPENDENT = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


@dataclass(frozen=True)
class JointMatrix:
    """Where a layer's parameters live: ``[W | b]`` with the weight flattened behind its first axis."""

    weight: str
    bias: str | None
    weight_shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def shape(self) -> tuple[int, int]:
        """``(d_out, d_in)``, the bias column included."""
        d_out = self.weight_shape[0]
        return d_out, int(torch.Size(self.weight_shape[1:]).numel()) + (self.bias is not None)

    def join(self, vector: ParameterMapping) -> Tensor:
        """The layer's entries of ``vector`` as one matrix ``[d_out, d_in]``."""
        matrix = vector[self.weight].reshape(self.weight_shape[0], -1)
        return matrix if self.bias is None else torch.cat([matrix, vector[self.bias][:, None]], dim=1)

    def split(self, matrix: Tensor) -> ParameterVector:
        """The inverse of :meth:`join`."""
        if self.bias is None:
            return {self.weight: matrix.reshape(self.weight_shape)}
        return {self.weight: matrix[:, :-1].reshape(self.weight_shape), self.bias: matrix[:, -1].contiguous()}


@dataclass(frozen=True, eq=False)
class KroneckerLayer:
    """A covered Linear or Conv2d."""

    name: str
    module: nn.Linear | nn.Conv2d
    parameters: JointMatrix

    @property
    def groups(self) -> int:
        return 1

    @property
    def shape(self) -> tuple[int, int]:
        """``(d_out, d_in)``, the bias column included."""
        return self.parameters.shape

    def positions(self, output_gradient: Tensor) -> int:
        """|T|: positions at which the weight is used per sample."""
        return output_gradient[0].numel() // self.parameters.shape[0]

    @property
    def columns(self) -> Tensor:
        """For each column of the joint matrix the column of :meth:`patches` it multiplies, ``[d_in]``.

        A convolution's patches have the channels last, which is 2 to 5 times faster to gather (measured on a CPU).
        """
        d_in = self.parameters.shape[1]
        order = torch.arange(d_in)
        if isinstance(self.module, nn.Conv2d):
            channels, *kernel = self.parameters.weight_shape[1:]
            weights = channels * kernel[0] * kernel[1]
            order[:weights] = order[:weights].view(*kernel, channels).permute(2, 0, 1).reshape(-1)
        return order

    def patches(self, x: Tensor) -> Tensor:
        """Layer inputs ``[B, |T|, d_in]``, see :attr:`columns`; a 1 is appended where there is a bias."""
        module = self.module
        rows = _gather(x, module) if isinstance(module, nn.Conv2d) else x.reshape(x.shape[0], -1, x.shape[-1])
        return rows.contiguous() if self.parameters.bias is None else _with_ones(rows)

    def gradient_rows(self, output_gradient: Tensor) -> Tensor:
        """Gradients at the pre-activations ``[B, |T|, d_out]``, in the order of :meth:`patches`."""
        if isinstance(self.module, nn.Linear):
            return output_gradient.reshape(output_gradient.shape[0], -1, output_gradient.shape[-1])
        return output_gradient.flatten(2).transpose(1, 2).contiguous()


@dataclass(frozen=True, eq=False)
class GroupedLayer:
    """A covered Conv2d with ``groups`` > 1: that many small convolutions side by side.

    Row ``g · d_out + o`` of the joint matrix is output ``o`` of group ``g``; here ``d_out`` and ``d_in`` are those of
    one group.
    """

    name: str
    module: nn.Conv2d
    parameters: JointMatrix

    @property
    def groups(self) -> int:
        return self.module.groups

    @property
    def shape(self) -> tuple[int, int]:
        """``(d_out, d_in)`` of one group, the bias column included."""
        d_out, d_in = self.parameters.shape
        return d_out // self.groups, d_in

    @property
    def depthwise(self) -> bool:
        """One output per group: the group's block is only ``[d_in, d_in]``, and exact."""
        return self.shape[0] == 1

    def patches(self, x: Tensor) -> Tensor:
        """Layer inputs ``[B, |T|, G, d_in]``; a 1 is appended where there is a bias."""
        rows = _by_group(_unfold(x, self.module), self.groups)
        return rows if self.parameters.bias is None else _with_ones(rows)

    def gradient_rows(self, output_gradient: Tensor) -> Tensor:
        """Gradients at the pre-activations ``[B, |T|, G, d_out]``, in the order of :meth:`patches`."""
        return _by_group(output_gradient.flatten(2).transpose(1, 2), self.groups)


@dataclass(frozen=True, eq=False)
class NormLayer:
    """A covered BatchNorm in eval mode: per channel a fixed affine map of the normalised input."""

    name: str
    module: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
    weight: str
    bias: str

    def sample_gradients(self, x: Tensor, output_gradient: Tensor) -> Tensor:
        """Gradients per sample in (scale, shift), ``[B, 2C]``."""
        mean, inverse_deviation = eval_statistics(self.module)
        channels = (1, -1, *([1] * (x.dim() - 2)))
        normalised = (x - mean.view(channels)) * inverse_deviation.view(channels)
        by_channel = (x.shape[0], x.shape[1], -1)
        scale = (output_gradient * normalised).reshape(by_channel).sum(2)
        return torch.cat([scale, output_gradient.reshape(by_channel).sum(2)], dim=1)


@dataclass(frozen=True, eq=False)
class Coverage:
    """What a fit covers: layers with Kronecker factors, BatchNorms with exact blocks, and what is left
    out."""

    layers: tuple[KroneckerLayer, ...]
    norms: tuple[NormLayer, ...]
    uncovered: tuple[str, ...]
    """Trainable parameters left out by ``bn="frozen"``; parameters without ``requires_grad`` are not listed
    anywhere."""
    grouped: tuple[GroupedLayer, ...] = ()

    @property
    def kronecker(self) -> tuple[KroneckerLayer | GroupedLayer, ...]:
        """Every layer with Kronecker factors, be it for the whole or for its groups."""
        return (*self.layers, *self.grouped)

    @property
    def all(self) -> tuple[KroneckerLayer | GroupedLayer | NormLayer, ...]:
        """Every covered layer."""
        return (*self.layers, *self.grouped, *self.norms)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        kronecker = [name for layer in self.kronecker for name in layer.parameters.names]
        return (*kronecker, *(name for norm in self.norms for name in (norm.weight, norm.bias)))


def covered_parameters(model: nn.Module, *, bn: NormPolicy = "exact") -> tuple[str, ...]:
    """Names of the parameters that :func:`worker.curvature.factors.fit_factors` covers under the policy
    ``bn``."""
    return survey(model, bn=bn).parameter_names


def survey(model: nn.Module, *, bn: NormPolicy = "exact", only: Collection[str] | None = None) -> Coverage:
    """Find the covered layers; of them those called ``only``, if given.

    Layers whose parameters all lack ``requires_grad`` are constants of the edit: they need no factor and are
    not refused.

    Raises:
        UnsupportedLayerError: naming every layer or shared parameter that has no factor.
        TrainingModeError: see :func:`require_eval`.
    """
    if bn not in ("exact", "frozen"):
        raise ValueError(f"bn must be 'exact' or 'frozen', not {bn!r}")
    require_eval(model)
    require_untied(model)
    layers: list[KroneckerLayer] = []
    grouped: list[GroupedLayer] = []
    norms: list[NormLayer] = []
    uncovered: list[str] = []
    refused: list[str] = []
    for name, module in _modules_with_trainable_parameters(model):
        prefix = f"{name}." if name else ""
        wanted = only is None or name in only
        if reason := _unsupported(module):
            refused.append(f"{name or '(model)'} ({type(module).__name__}): {reason}")
        elif isinstance(module, (nn.Linear, nn.Conv2d)) and wanted:
            bias = None if module.bias is None else f"{prefix}bias"
            parameters = JointMatrix(f"{prefix}weight", bias, tuple(module.weight.shape))
            if isinstance(module, nn.Conv2d) and module.groups > 1:
                grouped.append(GroupedLayer(name, module, parameters))
            else:
                layers.append(KroneckerLayer(name, module, parameters))
        elif isinstance(module, NORMS) and bn == "frozen":
            uncovered += [f"{prefix}weight", f"{prefix}bias"]
        elif isinstance(module, NORMS) and wanted:
            norms.append(NormLayer(name, module, f"{prefix}weight", f"{prefix}bias"))
    if refused:
        raise UnsupportedLayerError("no curvature factor for " + "; ".join(refused))
    return Coverage(tuple(layers), tuple(norms), tuple(uncovered), tuple(grouped))


def require_eval(model: nn.Module) -> None:
    """Raise :class:`TrainingModeError` if a BatchNorm or Dropout is in train mode, or a BatchNorm has no
    statistics.

    Per-sample derivatives do not exist when a sample's output depends on its batch.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BATCH_DEPENDENT) and module.training:
            raise TrainingModeError(
                f"{name or '(model)'} ({type(module).__name__}) is in train mode; call model.eval() first"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise TrainingModeError(
                f"{name or '(model)'} ({type(module).__name__}) has no running statistics to evaluate with"
            )


def require_untied(model: nn.Module) -> None:
    """Raise :class:`UnsupportedLayerError` if one parameter is reachable under several names."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names[id(parameter)].append(name)
    if shared := [" = ".join(same) for same in names.values() if len(same) > 1]:
        raise UnsupportedLayerError("shared parameters have no curvature factor: " + "; ".join(shared))


def is_plain(module: nn.Module) -> bool:
    """True for a Linear, Conv2d or BatchNorm that computes what its class does, with parameters of its own.

    False for subclasses with other mathematics and for parametrised weights (weight norm, pruning).
    """
    kind = type(module)
    if "forward" in module.__dict__ or "weight" not in module._parameters:
        return False
    if isinstance(module, nn.Conv2d):
        return kind.forward is nn.Conv2d.forward and type(module)._conv_forward is nn.Conv2d._conv_forward
    if isinstance(module, nn.Linear):
        return kind.forward is nn.Linear.forward
    return isinstance(module, NORMS) and kind.forward is nn.modules.batchnorm._BatchNorm.forward


def eval_statistics(module: nn.modules.batchnorm._BatchNorm) -> tuple[Tensor, Tensor]:
    """Running mean ``[C]`` and ``1/√(running variance + ε)`` ``[C]``."""
    mean, variance = module.running_mean, module.running_var
    assert mean is not None  # noqa: S101  (require_eval has refused modules without statistics)
    assert variance is not None  # noqa: S101
    return mean, torch.rsqrt(variance + module.eps)


def _modules_with_trainable_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            yield name, module


def _unsupported(module: nn.Module) -> str | None:
    """Why a module with trainable parameters has no factor, or None."""
    own = dict(module.named_parameters(recurse=False))
    if not is_plain(module) or not own.keys() <= {"weight", "bias"}:
        return "only plain Linear, Conv2d and BatchNorm layers are supported"
    if not all(parameter.requires_grad for parameter in own.values()):
        return "its weight and bias must be trainable or frozen together"
    return None


def _gather(x: Tensor, convolution: nn.Conv2d) -> Tensor:
    """The patches a convolution sees, ``[B, |T|, kernel · C]``, channels last within a patch."""
    padded = _pad(x, convolution).permute(0, 2, 3, 1).contiguous()
    (_, height, width, channels), strides = padded.shape, padded.stride()
    kernel, step, dilation = (
        cast(tuple[int, int], size) for size in (convolution.kernel_size, convolution.stride, convolution.dilation)
    )
    positions = [
        (size - dilation[axis] * (kernel[axis] - 1) - 1) // step[axis] + 1 for axis, size in enumerate((height, width))
    ]
    view = padded.as_strided(
        (len(x), *positions, *kernel, channels),
        (strides[0], *(strides[1 + i] * step[i] for i in (0, 1)), *(strides[1 + i] * dilation[i] for i in (0, 1)), 1),
    )
    return view.reshape(len(x), positions[0] * positions[1], -1)


def _unfold(x: Tensor, convolution: nn.Conv2d) -> Tensor:
    """The patches a convolution sees, ``[B, |T|, C · kernel]``, channels first within a patch."""
    kernel = cast(tuple[int, int], convolution.kernel_size)
    columns = functional.unfold(_pad(x, convolution), kernel, dilation=convolution.dilation, stride=convolution.stride)
    return columns.transpose(1, 2)


def _by_group(rows: Tensor, groups: int) -> Tensor:
    """``[B, |T|, G · D]`` as ``[B, |T|, G, D]``."""
    return rows.reshape(*rows.shape[:2], groups, -1)


def _with_ones(rows: Tensor) -> Tensor:
    """``rows`` with a 1 appended along the last axis."""
    joined = rows.new_ones(*rows.shape[:-1], rows.shape[-1] + 1)
    joined[..., :-1] = rows
    return joined


def _pad(x: Tensor, convolution: nn.Conv2d) -> Tensor:
    """The input as the convolution sees it, padded on (left, right, top, bottom)."""
    amounts: list[int] = []
    for axis in (1, 0):
        if convolution.padding == "same":
            total = convolution.dilation[axis] * (convolution.kernel_size[axis] - 1)
            amounts += [total // 2, total - total // 2]
        elif convolution.padding == "valid":
            amounts += [0, 0]
        else:
            amounts += [cast(int, convolution.padding[axis])] * 2
    if not any(amounts):
        return x
    if convolution.padding_mode == "zeros":
        return functional.pad(x, amounts)
    return functional.pad(x, amounts, mode=convolution.padding_mode)
