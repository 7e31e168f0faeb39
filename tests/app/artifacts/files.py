"""Looking at a directory as somebody would who searches it for traces."""

from __future__ import annotations

from pathlib import Path


def all_files(folder: Path) -> list[Path]:
    """Every file below ``folder``, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def files_holding(folder: Path, content: bytes) -> list[Path]:
    """Files that contain the bytes anywhere."""
    return [path for path in all_files(folder) if content in path.read_bytes()]
