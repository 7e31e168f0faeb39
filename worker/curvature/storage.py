"""Factors as one safetensors file.

Tensors, all float32:

- ``layers.<name>.Q_A`` ``[d_in, r_A]``, ``layers.<name>.values_A`` ``[r_A]``
- ``layers.<name>.Q_S`` ``[d_out, r_S]``, ``layers.<name>.values_S`` ``[r_S]``
- ``layers.<name>.corrected`` ``[r_S, r_A]``
- ``grouped.<name>.Q_A`` ``[G, d_in, d_in]`` and so on, as for ``layers`` with the groups first
- ``norms.<name>.Q`` ``[2C, r]``, ``norms.<name>.values`` ``[r]``

The header's metadata has the single key ``modelmend.factors``: JSON with sorted keys holding ``format``,
``sha256`` (of all tensors' bytes in the order of their names) and ``manifest``. One key, because the order of
several is not fixed; equal factors give equal bytes.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from worker.curvature.blocks import GroupedFactor, LayerFactor, NormFactor
from worker.curvature.eigen import Eigenbasis
from worker.curvature.errors import FactorFileError
from worker.curvature.factors import Factors, FitRecord
from worker.curvature.layers import JointMatrix

K = TypeVar("K", LayerFactor, GroupedFactor)

FORMAT = 2
"""2 added convolutions with groups; files of format 1, which have none, are read too."""

_READABLE = (1, FORMAT)
_KEY = "modelmend.factors"


def save_factors(factors: Factors, path: Path) -> None:
    """Write ``factors`` to ``path`` in float32, replacing it in one step (float64 factors lose precision)."""
    tensors = {
        name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in _tensors(factors).items()
    }
    header = {"format": FORMAT, "sha256": _digest(tensors), "manifest": factors.manifest()}
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata={_KEY: json.dumps(header, sort_keys=True, separators=(",", ":"))})
    partial.replace(path)


def load_factors(path: Path, device: torch.device | str = "cpu") -> Factors:
    """Read factors, float32, onto ``device``.

    Raises:
        FactorFileError: the file is truncated, corrupt, or no factor file of this format.
        FileNotFoundError: there is no file.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (safe_open is no mapping)
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise FactorFileError(f"{path} is truncated, or not a factor file: {error}") from error
    if header.get("format") not in _READABLE:
        raise FactorFileError(f"{path} has factor format {header.get('format')}, this program reads {FORMAT}")
    if header.get("sha256") != _digest(tensors):
        raise FactorFileError(f"{path} is corrupt: its tensors do not match the digest in its header")
    try:
        return _assemble(header["manifest"], {name: tensor.to(device) for name, tensor in tensors.items()})
    except (KeyError, TypeError) as error:
        raise FactorFileError(f"{path} is not a complete factor file: missing {error}") from error


def _tensors(factors: Factors) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for section, of_section in (("layers", factors.layers), ("grouped", factors.grouped)):
        for name, layer in of_section.items():
            at = f"{section}.{name}."
            tensors[at + "Q_A"], tensors[at + "values_A"] = layer.A.vectors, layer.A.values
            tensors[at + "Q_S"], tensors[at + "values_S"] = layer.S.vectors, layer.S.values
            tensors[at + "corrected"] = layer.corrected
    for name, norm in factors.norms.items():
        tensors[f"norms.{name}.Q"], tensors[f"norms.{name}.values"] = norm.block.vectors, norm.block.values
    return tensors


def _assemble(manifest: dict[str, Any], tensors: dict[str, Tensor]) -> Factors:
    order = {name: place for place, name in enumerate(manifest["covered"])}

    def section(kind: type[K], key: str) -> dict[str, K]:
        found: dict[str, K] = {}
        entries = manifest.get(key, {})
        for name in sorted(entries, key=lambda name: order[entries[name]["weight"]]):
            entry, at = entries[name], f"{key}.{name}."
            A = Eigenbasis(tensors[at + "Q_A"], tensors[at + "values_A"])
            S = Eigenbasis(tensors[at + "Q_S"], tensors[at + "values_S"])
            parameters = JointMatrix(entry["weight"], entry["bias"], tuple(entry["weight_shape"]))
            found[name] = kind(name, parameters, A, S, tensors[at + "corrected"])
        return found

    layers, grouped = section(LayerFactor, "layers"), section(GroupedFactor, "grouped")
    norms = {
        name: NormFactor(
            name,
            entry["weight"],
            entry["bias"],
            Eigenbasis(tensors[f"norms.{name}.Q"], tensors[f"norms.{name}.values"]),
        )
        for name, entry in manifest["norms"].items()
    }
    norms = dict(sorted(norms.items(), key=lambda item: order[item[1].weight]))
    record = FitRecord(
        seed=manifest["seed"],
        num_draws=manifest["num_draws"],
        output_fisher=manifest["output_fisher"],
        bn=manifest["bn"],
        rows=manifest["rows"],
        uncovered=tuple(manifest["uncovered"]),
        precision=manifest.get("precision"),
        adaptations=tuple(manifest["adaptations"]),
    )
    return Factors(layers, norms, record, grouped)


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].numpy().data if tensors[name].numel() else b"")
    return digest.hexdigest()
