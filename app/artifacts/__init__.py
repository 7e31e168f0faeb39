"""Where bytes lie: weights, factors and snapshots under their digest, images one file per row, uploads in waiting."""

from app.artifacts.effects import on_commit, on_rollback
from app.artifacts.local import LocalArtifactStore
from app.artifacts.store import ArtifactCorrupt, ArtifactMissing, ArtifactStore
from app.settings import Settings


def open_store(settings: Settings) -> ArtifactStore:
    """The store this deployment uses: a directory below ``settings.data_dir``."""
    return LocalArtifactStore(settings.data_dir / "artifacts")


__all__ = [
    "ArtifactCorrupt",
    "ArtifactMissing",
    "ArtifactStore",
    "LocalArtifactStore",
    "on_commit",
    "on_rollback",
    "open_store",
]
