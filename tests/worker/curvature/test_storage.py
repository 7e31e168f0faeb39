"""Factor files: round trip, determinism, and damage."""

import json
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from tests.worker.curvature.dense import batches_of, conv_net, random_vector
from worker.curvature.ekfac import EKFAC
from worker.curvature.errors import FactorFileError
from worker.curvature.factors import Factors, fit_factors
from worker.curvature.storage import load_factors, save_factors
from worker.curvature.surgery import drop_outputs


@pytest.fixture(scope="module")
def factors() -> Factors:
    torch.manual_seed(0)
    model = conv_net().float()
    return fit_factors(model, batches_of(torch.randn(20, 1, 6, 6, dtype=torch.float32)), seed=3)


def test_loaded_factors_solve_as_the_saved_ones(factors: Factors, tmp_path: Path) -> None:
    save_factors(factors, tmp_path / "factors.safetensors")
    loaded = load_factors(tmp_path / "factors.safetensors")
    vector = random_vector(conv_net().float(), factors.parameter_names)
    expected, found = EKFAC(factors, 0.1).solve(vector), EKFAC(loaded, 0.1).solve(vector)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert loaded.record == factors.record
    assert loaded.manifest() == factors.manifest()
    assert loaded.parameter_names == factors.parameter_names
    assert [path.name for path in tmp_path.iterdir()] == ["factors.safetensors"]


def test_changed_heads_survive_the_round_trip(factors: Factors, tmp_path: Path) -> None:
    save_factors(drop_outputs(factors, "7", [1]), tmp_path / "dropped")
    loaded = load_factors(tmp_path / "dropped")
    assert loaded.layers["7"].parameters.weight_shape == (2, 16)
    assert loaded.record.adaptations == ("dropped 1 outputs of 7",)


def test_equal_factors_give_equal_bytes(factors: Factors, tmp_path: Path) -> None:
    for name in ("first", "second"):
        save_factors(factors, tmp_path / name)
    save_factors(load_factors(tmp_path / "first"), tmp_path / "third")
    first = (tmp_path / "first").read_bytes()
    assert first == (tmp_path / "second").read_bytes() == (tmp_path / "third").read_bytes()


def test_file_has_the_documented_names_and_manifest(factors: Factors, tmp_path: Path) -> None:
    save_factors(factors, tmp_path / "factors")
    with safetensors.safe_open(tmp_path / "factors", framework="pt") as file:
        names = set(file.keys())
        metadata = file.metadata()
    kronecker = {
        f"layers.{name}.{part}" for name in "037" for part in ("Q_A", "values_A", "Q_S", "values_S", "corrected")
    }
    assert names == kronecker | {"norms.1.Q", "norms.1.values"}
    assert list(metadata) == ["modelmend.factors"]
    assert json.loads(metadata["modelmend.factors"])["manifest"] == factors.manifest()


def test_double_precision_is_stored_in_single(tmp_path: Path) -> None:
    double = fit_factors(conv_net(), batches_of(torch.randn(8, 1, 6, 6)), seed=3)
    save_factors(double, tmp_path / "factors")
    loaded = load_factors(tmp_path / "factors")
    assert loaded.layers["3"].corrected.dtype == torch.float32
    torch.testing.assert_close(
        loaded.layers["3"].corrected.double(), double.layers["3"].corrected, atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("kept", [0, 5, 300, -1])
def test_truncated_files_are_refused(factors: Factors, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "factors"
    save_factors(factors, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FactorFileError, match=r"factors is truncated, or not a factor file"):
        load_factors(path)


def test_flipped_bits_are_refused(factors: Factors, tmp_path: Path) -> None:
    path = tmp_path / "factors"
    save_factors(factors, path)
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(FactorFileError, match="corrupt"):
        load_factors(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(FactorFileError, match="not a factor file"):
        load_factors(path)
    save_file({"weight": torch.zeros(2)}, path, metadata={"modelmend.factors": '{"format": 99}'})
    with pytest.raises(FactorFileError, match="format 99"):
        load_factors(path)
    with pytest.raises(FileNotFoundError):
        load_factors(tmp_path / "missing")


def test_files_of_the_first_format_are_read(factors: Factors, tmp_path: Path) -> None:
    save_factors(factors, tmp_path / "new")
    with safetensors.safe_open(tmp_path / "new", framework="pt") as file:
        header = json.loads(file.metadata()["modelmend.factors"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header["format"] = 1
    del header["manifest"]["grouped"], header["manifest"]["precision"]
    save_file(tensors, tmp_path / "old", metadata={"modelmend.factors": json.dumps(header)})
    assert load_factors(tmp_path / "old").manifest() == factors.manifest()


def test_files_that_lack_tensors_are_refused(factors: Factors, tmp_path: Path) -> None:
    path = tmp_path / "factors"
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of no bytes
    header = {"format": 1, "sha256": nothing, "manifest": factors.manifest()}
    save_file({}, path, metadata={"modelmend.factors": json.dumps(header)})
    with pytest.raises(FactorFileError, match="missing 'layers"):
        load_factors(path)
