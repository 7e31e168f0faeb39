"""A restoration as a job: what is published was looked at, and edits go on from there."""

from __future__ import annotations

import pytest

from tests.worker.computing.scene import DATASET, TOLERANT, World, version
from worker.computing.workbench import Workbench
from worker.tasks import BaseVersion, Result, TaskFailure


def restore(world: World, base: BaseVersion) -> Result:
    return world.scene.run(world.scene.task("restore", base=base))


def test_everything_is_the_older_version_s(world: World) -> None:
    result = restore(world, world.base)
    assert result.publishes
    assert (result.concepts, result.metrics) == (world.base.concepts, world.base.metrics)
    assert (result.snapshot_digest, result.weights_digest) == (world.base.snapshot_digest, world.base.weights_digest)
    assert (result.factors_digest, result.factors_version) == (world.base.factors_digest, 1)
    assert (result.report["kind"], result.report["version"]) == ("restore", 1)


def test_edit_restore_edit(own_world: World) -> None:
    """The second edit is what it had been on the version itself: it has its factors, and forgets the first."""
    first = version(own_world.scene.edit(own_world.base, own_world.changes("drop"), **TOLERANT), 2)
    restored = version(restore(own_world, own_world.base), 3)
    assert restored.concepts != first.concepts
    again = own_world.scene.edit(restored, own_world.changes("fix"), **TOLERANT)
    direct = own_world.scene.edit(own_world.base, own_world.changes("fix"), **TOLERANT)
    assert again.weights_digest == direct.weights_digest
    assert (again.factors_digest, again.factors_version) == (own_world.fitted.factors_digest, 1)
    assert not again.report["factors"]["fitted_here"]


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("name", ["weights", "data", "factors"])
def test_what_is_not_whole_is_not_published(own_world: World, name: str, how: str) -> None:
    """But factors, which can be fitted again, are left out."""
    base, store = own_world.base, own_world.scene.store
    digests = {"weights": base.weights_digest, "data": base.snapshot_digest, "factors": base.factors_digest}
    path = store.fetch(digests[name] or "")
    if how == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    if name == "factors":
        result = restore(own_world, base)
        assert (result.factors_digest, result.factors_version, result.report["factors"]) == (None, None, None)
        assert result.weights_digest == base.weights_digest
        return
    with pytest.raises(TaskFailure, match=f"The {name} of version 1 are missing or damaged") as failure:
        restore(own_world, base)
    assert failure.value.code == "version_damaged"


def test_nothing_is_written(own_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("a restoration stores nothing")

    monkeypatch.setattr(Workbench, "put_model", refuse)
    monkeypatch.setattr(type(own_world.scene.store), "put", refuse)
    own_world.scene.store.delete_images(DATASET, own_world.scene.snapshot.sample_ids.tolist())
    assert restore(own_world, own_world.base).publishes
