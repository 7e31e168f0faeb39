"""Faster arithmetic: what it changes, and that it is measured before it is used."""

import pytest
import torch
from torch import nn

from tests.worker.curvature.blocks import assert_same_blocks
from tests.worker.curvature.dense import batches_of, random_norms, random_vector
from worker.curvature.factors import fit_factors
from worker.curvature.precision import Measurement, arithmetic, fastest_within, measure, moments_of, product_of

ROWS = 24


def net() -> nn.Module:
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Conv2d(16, 32, 3, stride=2)]
    return random_norms(nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 5))).float()


def images() -> torch.Tensor:
    return torch.randn(ROWS, 1, 8, 8, dtype=torch.float32)


def settings() -> list[str]:
    backends = torch.backends
    return [
        backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
        backends.mkldnn.conv.fp32_precision,  # type: ignore[attr-defined]
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
    ]


def test_settings_are_restored_also_after_errors() -> None:
    before = settings()
    with arithmetic("bf16"):
        assert settings() == ["bf16", "bf16", "tf32", "tf32"]
        with arithmetic("ieee"):
            assert settings() == ["ieee"] * 4
        assert settings() == ["bf16", "bf16", "tf32", "tf32"]
    with arithmetic("tf32"):
        assert settings() == ["ieee", "ieee", "tf32", "tf32"]
    with pytest.raises(ZeroDivisionError), arithmetic("tf32"):
        _ = 1 / 0
    with arithmetic(None):
        assert settings() == before
    assert settings() == before


@pytest.mark.parametrize("kind", ["moments", "product"])
def test_errors_against_double_precision_are_those_of_the_formats(kind: str) -> None:
    """Single precision has 24 bits: 6e-8 per operation, here over sums of up to 288. bfloat16 has 8: 4e-3 each, of
    which sums average most away; a label that flips because its probability moved would change one of 120."""
    model, x = net(), images()
    vector = {name: value.float() for name, value in random_vector(model).items()}
    compute = moments_of((x, None, torch.arange(ROWS))) if kind == "moments" else product_of(x, None, vector)
    exact, coarse = measure(model, compute, ("ieee", "bf16"), repeats=1)
    assert (exact.precision, coarse.precision) == ("ieee", "bf16")
    assert 0 < exact.error < 1e-5
    assert coarse.error < 0.05
    assert min(exact.seconds, coarse.seconds) > 0


def test_an_error_in_any_result_counts() -> None:
    model = nn.Linear(2, 2).float()
    good = torch.tensor([3.0, 4.0])

    def compute(own: nn.Module) -> dict[str, torch.Tensor]:
        double = next(own.parameters()).dtype == torch.float64
        return {"a": good, "b": good if double else good * 1.5, "c": good * 0}

    (found,) = measure(model, compute, ("ieee",), repeats=1)
    assert found.error == pytest.approx(0.5)


def test_the_fastest_that_is_exact_enough_is_chosen() -> None:
    found = [Measurement("ieee", 1e-7, 3.0), Measurement("tf32", 1e-3, 2.0), Measurement("bf16", 1e-2, 1.0)]
    assert fastest_within(found, 0.02) == "bf16"
    assert fastest_within(found, 5e-3) == "tf32"
    assert fastest_within(found, 1e-6) == "ieee"
    assert fastest_within(found, 1e-9) == "ieee"
    assert fastest_within([Measurement("ieee", 1e-7, 1.0), Measurement("bf16", 1e-3, 2.0)], 0.1) == "ieee"
    assert fastest_within([Measurement("bf16", float("nan"), 1.0)], 0.1) == "ieee"


def test_a_fit_says_in_which_precision_it_was_made() -> None:
    model, x = net(), images()
    used: list[str] = []
    model.register_forward_hook(lambda module, arguments, output: used.append(settings()[0]))
    coarse = fit_factors(model, batches_of(x), seed=0, output_fisher="exact", precision="bf16")
    assert set(used) == {"bf16"}
    assert coarse.manifest()["precision"] == "bf16"
    exact = fit_factors(model, batches_of(x), seed=0, output_fisher="exact")
    assert exact.manifest()["precision"] is None
    assert_same_blocks(coarse, exact, tolerance=0.05)  # as measured above
