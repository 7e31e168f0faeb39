from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.artifacts import LocalArtifactStore
from tests.worker.computing.scene import Scene, World
from tests.worker.threads import one_thread, single_thread
from worker.computing import workbench
from worker.data.images import ImageCache

__all__ = ["one_thread"]


@pytest.fixture(autouse=True)
def fresh_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just started."""
    monkeypatch.setattr(workbench, "IMAGES", ImageCache(1 << 24))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A trained version with factors. Its images are everybody's: a test that removes any takes ``own_world``."""
    with single_thread():
        return World.of(Scene.build(LocalArtifactStore(tmp_path_factory.mktemp("world"))))


@pytest.fixture
def own_world(world: World, tmp_path: Path) -> World:
    """A copy of the world."""
    assert isinstance(world.scene.store, LocalArtifactStore)
    shutil.copytree(world.scene.store.root, tmp_path, dirs_exist_ok=True)
    scene = Scene(LocalArtifactStore(tmp_path), world.scene.snapshot, world.scene.truth)
    return World(scene, world.trained, world.fitted)
