"""Return to an older version: nothing is computed, but nothing is published either that is not there whole."""

from __future__ import annotations

import time

from app.artifacts import ArtifactMissing, ArtifactStore
from worker.computing.workbench import Workbench
from worker.tasks import Result, TaskFailure


def restore(bench: Workbench) -> Result:
    """A new version of the base version's artifacts, after each was read and found to have its digest.

    Factors that are not there any more are left out: they can be fitted again.

    Raises:
        TaskFailure: ``version_damaged``, weights or snapshot are missing or not what they were.
    """
    base, start = bench.task.base, time.perf_counter()
    if base is None:
        raise RuntimeError("a restoration has a version")
    bench.progress("loading", 0, 1)
    for name, digest in (("weights", base.weights_digest), ("data", base.snapshot_digest)):
        if not _intact(bench.store, digest):
            raise TaskFailure("version_damaged", f"The {name} of version {base.number} are missing or damaged.")
    factors = base.factors_digest is not None and _intact(bench.store, base.factors_digest)
    bench.progress("publishing", 0, 1)
    return Result(
        concepts=base.concepts,
        publishes=True,
        snapshot_digest=base.snapshot_digest,
        weights_digest=base.weights_digest,
        factors_digest=base.factors_digest if factors else None,
        factors_version=base.factors_version if factors else None,
        metrics=base.metrics,
        report={
            "kind": "restore",
            "version": base.number,
            "weights_sha256": base.weights_digest,
            "snapshot_sha256": base.snapshot_digest,
            "factors": {"version": base.factors_version, "age": base.factors_age} if factors else None,
            "seconds": time.perf_counter() - start,
        },
    )


def _intact(store: ArtifactStore, digest: str) -> bool:
    try:
        store.fetch(digest)
    except ArtifactMissing:  # or corrupt, which is a kind of missing
        return False
    return True
