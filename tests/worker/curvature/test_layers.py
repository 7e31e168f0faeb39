"""Which layers are covered, what is refused and under which name, and patches against the layers themselves."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from worker.curvature.errors import TrainingModeError, UnsupportedLayerError
from worker.curvature.layers import covered_parameters, survey

CONVOLUTIONS: dict[str, Callable[[], nn.Conv2d]] = {
    "plain": lambda: nn.Conv2d(2, 3, 3),
    "pointwise, stride": lambda: nn.Conv2d(2, 3, 1, stride=2),
    "no bias": lambda: nn.Conv2d(2, 3, 3, bias=False),
    "stride": lambda: nn.Conv2d(2, 3, 3, stride=(2, 3)),
    "padding": lambda: nn.Conv2d(2, 3, 3, padding=(2, 1)),
    "dilation": lambda: nn.Conv2d(2, 3, (2, 3), dilation=(3, 2)),
    "all at once": lambda: nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(0, 2), dilation=(2, 1), bias=False),
    "same": lambda: nn.Conv2d(2, 3, 3, padding="same"),
    "same, even kernel": lambda: nn.Conv2d(2, 3, (2, 4), padding="same", dilation=(1, 3)),
    "valid": lambda: nn.Conv2d(2, 3, 2, padding="valid"),
    "circular": lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="circular"),
    "reflect": lambda: nn.Conv2d(2, 3, (2, 3), padding="same", padding_mode="reflect"),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel:UserWarning")  # slow, not wrong
@pytest.mark.parametrize("make", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_patches_times_joint_matrix_is_the_convolution(
    make: Callable[[], nn.Conv2d], memory_format: torch.memory_format
) -> None:
    model = nn.Sequential(make())
    x = torch.randn(4, 2, 7, 8).to(memory_format=memory_format)
    (layer,) = survey(model).layers
    joint = layer.parameters.join(dict(model.named_parameters()))
    output = model(x)
    assert layer.positions(output) == output.shape[2] * output.shape[3]
    torch.testing.assert_close(layer.patches(x)[..., layer.columns] @ joint.T, layer.gradient_rows(output))


def test_patches_of_a_linear_layer_keep_inner_axes_as_positions() -> None:
    model = nn.Sequential(nn.Linear(5, 2))
    x = torch.randn(3, 4, 6, 5)
    (layer,) = survey(model).layers
    joint = layer.parameters.join(dict(model.named_parameters()))
    assert layer.patches(x).shape == (3, 24, 6)
    torch.testing.assert_close(layer.patches(x) @ joint.T, layer.gradient_rows(model(x)))


def test_split_undoes_join() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Conv2d(3, 2, 3, bias=False))
    parameters = dict(model.named_parameters())
    found: dict[str, torch.Tensor] = {}
    for layer in survey(model).layers:
        found |= layer.parameters.split(layer.parameters.join(parameters))
    assert found.keys() == parameters.keys()
    for name, value in parameters.items():
        assert torch.equal(found[name], value)


def test_covered_parameters_follow_the_norm_policy() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 1)).eval()
    kronecker = ("0.weight", "0.bias", "3.weight", "3.bias")
    assert covered_parameters(model, bn="exact") == (*kronecker, "1.weight", "1.bias")
    assert covered_parameters(model, bn="frozen") == kronecker
    assert survey(model, bn="frozen").uncovered == ("1.weight", "1.bias")
    with pytest.raises(ValueError, match="'exact' or 'frozen'"):
        survey(model, bn="other")  # type: ignore[arg-type]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


class Squared(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 2


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: nn.LayerNorm(4),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "Embedding": lambda: nn.Embedding(4, 2),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(2, 2, 3),
    "Conv1d": lambda: nn.Conv1d(2, 2, 3),
    "PReLU": nn.PReLU,
    "Scaled": Scaled,
    "Squared": lambda: Squared(4, 2),
    "ParametrizedLinear": lambda: parametrizations.weight_norm(nn.Linear(4, 2)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_layers_without_a_factor_are_refused_by_name(reason: str) -> None:
    model = nn.ModuleDict({"stem": nn.Linear(4, 4), "block": nn.Sequential(nn.ReLU(), REFUSED[reason]())})
    with pytest.raises(UnsupportedLayerError, match=rf"block\.1.*{reason}"):
        survey(model)


def test_every_refused_layer_is_named_at_once() -> None:
    with pytest.raises(UnsupportedLayerError, match=r"1 \(LayerNorm\).*2 \(PReLU\)"):
        survey(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU()))


def test_frozen_layers_need_no_factor() -> None:
    model = nn.Sequential(nn.LayerNorm(4).requires_grad_(False), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    assert covered_parameters(model) == ("2.weight", "2.bias")


def test_half_frozen_layers_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].bias.requires_grad_(False)
    with pytest.raises(UnsupportedLayerError, match=r"0 \(Linear\).*together"):
        survey(model)


def test_shared_parameters_are_refused_under_all_their_names() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    with pytest.raises(UnsupportedLayerError, match=r"0\.weight = 2\.weight"):
        survey(model)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(nn.BatchNorm2d(2), "BatchNorm2d"), (nn.BatchNorm2d(2, affine=False), "BatchNorm2d"), (nn.Dropout(), "Dropout")],
)
def test_layers_in_train_mode_are_refused_by_name(layer: nn.Module, kind: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(layer)).eval()
    survey(model)
    layer.train()
    with pytest.raises(TrainingModeError, match=rf"1\.0 \({kind}\) is in train mode"):
        survey(model)


def test_norms_without_running_statistics_are_refused() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)).eval()
    with pytest.raises(TrainingModeError, match=r"0 \(BatchNorm2d\) has no running statistics"):
        survey(model)
