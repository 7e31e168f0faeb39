"""Fitting a version's EK-FAC factors, and having them when an edit needs them."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worker.cbm.concept_predictor import ConceptPredictor
from worker.computing.workbench import Workbench
from worker.curvature.errors import CheckpointError
from worker.curvature.factors import Factors, fit_factors
from worker.data.tensors import LabelledImages
from worker.tasks import Result

BATCH_SIZE = 256

MEMORY_SHARE = 4
"""One part in so many of the memory may hold a fit's sums and bases; where that is little, layers take turns."""

REFRESH_AFTER = 64
"""Edits after which an edit fits factors anew: as far as their service is measured.

On three draws of the demo's data, after up to 64 edits that removed 1% of the rows or corrected labels
(``bench/refresh.py``), further edits had the same closures with inherited factors as with new ones (within 0.06) and
the same held-out concept F1 (within 0.0015), while solves stopped at residuals 0.85 to 1.9 times as large. A fit takes
as long as one to three edits.
"""


def fit(bench: Workbench) -> Result:
    """Fit the factors of a version on its train split and store them."""
    task = bench.task
    if task.base is None:
        raise RuntimeError("factors are fitted on a version")
    start = time.perf_counter()
    bench.progress("loading", 0, 1)
    rows = bench.rows(bench.snapshot(task.base.snapshot_digest), "train")
    model, _ = bench.model(task.base)
    factors = fit_on(bench, model, rows, task.seed)
    bench.progress("publishing", 0, 1)
    digest = bench.put_factors(factors)
    return Result(
        concepts=task.base.concepts,
        publishes=False,
        factors_digest=digest,
        factors_version=task.base.number,
        report={
            "kind": "fit_factors",
            "device": bench.device,
            "version": task.base.number,
            "snapshot_sha256": task.base.snapshot_digest,
            "factors_sha256": digest,
            "manifest": factors.manifest(),
            "seconds": time.perf_counter() - start,
        },
    )


@dataclass(frozen=True)
class ChosenFactors:
    """The factors that serve an edit.

    Attributes:
        version: they were fitted on.
        age: edits between that version and the base version.
        fitted_here: within this job, on the base version.
        refreshed: fitted anew because the cached ones were too old.
    """

    factors: Factors
    version: int
    age: int
    fitted_here: bool
    refreshed: bool

    def report(self) -> dict[str, Any]:
        return {
            "fitted_here": self.fitted_here,
            "version": self.version,
            "age": self.age,
            "refreshed": self.refreshed,
        }


def factors_for(bench: Workbench, model: ConceptPredictor, rows: LabelledImages) -> ChosenFactors:
    """The base version's factors; or new ones, where it has none, they are too old, or the method is the paper's.

    Args:
        rows: that the base version was trained on.
    """
    base = bench.task.base
    if base is None:
        raise RuntimeError("an edit has a base version")
    refits = bench.task.options.get("method") == "closed_form"
    if base.factors_digest is None or base.factors_version is None or refits or base.factors_age >= REFRESH_AFTER:
        refreshed = base.factors_digest is not None and not refits
        return ChosenFactors(fit_on(bench, model, rows, bench.task.seed), base.number, 0, True, refreshed)
    return ChosenFactors(bench.factors(base.factors_digest), base.factors_version, base.factors_age, False, False)


def fit_on(bench: Workbench, model: ConceptPredictor, rows: LabelledImages, seed: int) -> Factors:
    """EK-FAC factors of the true Fisher at ``model``, over ``rows``."""
    numbers = {"covariances": 0, "eigenbases": 1, "eigenvalues": 2}

    def batches() -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        for start in range(0, len(rows), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            known = (rows.concepts[part] >= 0).to(rows.images.dtype)
            yield rows.images[part], known, torch.arange(start, start + len(known), device=rows.images.device)

    folder = _checkpoint(bench, seed)
    fitted = partial(
        fit_factors,
        model,
        batches,
        seed=seed,
        progress=lambda phase, _: bench.progress("fitting", numbers[phase], len(numbers)),
        checkpoint=folder,
        memory_limit=memory(bench.device) // MEMORY_SHARE,
    )
    try:
        return fitted()
    except CheckpointError:  # damaged, or of a program that fitted otherwise
        shutil.rmtree(folder, ignore_errors=True)
        return fitted()


def memory(device: str) -> int:
    """Bytes of memory that the device has; of main memory, those that this process may use.

    Of all, not of what is free at the moment: it decides in how many parts a fit is done, and one that is taken up
    again must find the same.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        granted = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return physical
    return min(physical, int(granted)) if granted.isdigit() else physical


def _checkpoint(bench: Workbench, seed: int) -> Path:
    """Where a fit of this version goes on if its process dies: the next attempt of the job finds it."""
    base = bench.task.base
    if base is None:
        raise RuntimeError("factors are fitted on a version")
    parts = (bench.task.model_id, base.weights_digest, base.snapshot_digest, str(seed), bench.device)
    return bench.store.work_folder(f"fit-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:32]}")
