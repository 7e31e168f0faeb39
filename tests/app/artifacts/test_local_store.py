from __future__ import annotations

import errno
import hashlib
import io
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.artifacts import ArtifactCorrupt, ArtifactMissing, LocalArtifactStore
from tests.app.artifacts.files import all_files, files_holding


@pytest.fixture
def store(tmp_path: Path) -> LocalArtifactStore:
    return LocalArtifactStore(tmp_path)


def later() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=10)


def test_an_artifact_is_named_by_its_content(store: LocalArtifactStore, tmp_path: Path) -> None:
    digest = store.put(b"weights")
    assert digest == hashlib.sha256(b"weights").hexdigest()
    assert store.fetch(digest).read_bytes() == b"weights"


def test_bytes_file_and_stream_of_one_content_are_one_artifact(store: LocalArtifactStore, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)  # more than one chunk
    source = tmp_path / "elsewhere"
    source.write_bytes(content)
    digests = {store.put(content), store.put(source), store.put(io.BytesIO(content))}
    source.unlink()
    assert len(digests) == 1
    assert store.fetch(digests.pop()).read_bytes() == content
    assert len(all_files(tmp_path)) == 1


def test_what_was_never_stored_is_missing(store: LocalArtifactStore) -> None:
    with pytest.raises(ArtifactMissing):
        store.fetch("0" * 64)


def test_one_flipped_bit_is_found(store: LocalArtifactStore) -> None:
    digest = store.put(b"weights")
    path = store.fetch(digest)
    path.chmod(0o600)
    path.write_bytes(b"weighus")
    with pytest.raises(ArtifactCorrupt):
        store.fetch(digest)


def test_a_deleted_artifact_is_gone_and_deleting_again_is_no_error(store: LocalArtifactStore, tmp_path: Path) -> None:
    digest = store.put(b"weights")
    store.delete(digest)
    store.delete(digest)
    with pytest.raises(ArtifactMissing):
        store.fetch(digest)
    assert not all_files(tmp_path)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "..", ".", "a\0b", "/etc/passwd", "-x", "x" * 101])
def test_no_name_leads_out_of_the_store(store: LocalArtifactStore, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        store.image_path(name, 1)
    with pytest.raises(ValueError, match="name"):
        store.upload_path(name)
    with pytest.raises(ValueError, match="name"):
        store.fetch(name)


def test_one_images_bytes_go_and_equal_bytes_of_another_row_stay(store: LocalArtifactStore, tmp_path: Path) -> None:
    content = os.urandom(64)
    store.put_images("digits", {1: content, 2: content, 5000: os.urandom(64)})
    store.delete_images("digits", [1, 99])
    assert files_holding(tmp_path, content) == [store.image_path("digits", 2)]
    store.delete_images("digits", [2])
    assert files_holding(tmp_path, content) == []
    assert len(all_files(tmp_path)) == 1


def test_a_batch_of_images_is_stored_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalArtifactStore(tmp_path)
    real_fsync = os.fsync
    calls = iter(range(1000))

    def full_after_five(descriptor: int) -> None:
        if next(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_after_five)
    with pytest.raises(OSError, match="No space"):
        store.put_images("digits", dict.fromkeys(range(50), b"image"))
    assert not all_files(tmp_path)


def test_a_failed_write_of_an_artifact_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalArtifactStore(tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.put(b"weights")
    assert not all_files(tmp_path)


def test_files_are_private(store: LocalArtifactStore, tmp_path: Path) -> None:
    store.put(b"weights")
    store.put_images("digits", {1: b"image"})
    store.put_upload("up-1", b"file")
    assert {path.stat().st_mode & 0o777 for path in all_files(tmp_path)} == {0o600}


def test_every_file_and_its_name_are_made_durable(store: LocalArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real_fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    store.put_images("digits", {1: b"image"})
    folder = store.image_path("digits", 1).parent
    assert synced[0].parent.name == "unfinished"  # the content, under its first name
    assert {folder, folder.parent, folder.parent.parent} <= set(synced[1:])


def test_the_stored_can_be_listed_by_age(store: LocalArtifactStore) -> None:
    store.put_images("digits", {1: b"a", 9000: b"b"})
    store.put_images("birds", {3: b"c"})
    store.put_uploads({"up-1": b"d", "up-2": b"e"})
    assert set(store.stored_images(later())) == {("digits", 1), ("digits", 9000), ("birds", 3)}
    assert set(store.stored_uploads(later())) == {"up-1", "up-2"}
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    assert not list(store.stored_images(hour_ago))
    assert not list(store.stored_uploads(hour_ago))


def test_what_a_dead_writer_left_is_removed_once_it_is_old(store: LocalArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "unfinished" / "abandoned").write_bytes(b"half")
    assert store.remove_unfinished(datetime.now(UTC) - timedelta(hours=1)) == 0
    assert store.remove_unfinished(later()) == 1
    assert not all_files(tmp_path)


def test_work_that_nobody_went_on_with_is_removed_once_it_is_old(store: LocalArtifactStore, tmp_path: Path) -> None:
    """A folder goes as a whole, and not while any file in it is young."""
    long_ago = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    for name, ages in (("old", (long_ago, long_ago)), ("taken-up", (long_ago, None)), ("begun", ())):
        folder = store.work_folder(name)
        assert folder.parent == tmp_path / "work"
        folder.mkdir()
        for number, age in enumerate(ages):
            (folder / str(number)).write_bytes(b"sums")
            if age is not None:
                os.utime(folder / str(number), (age, age))
        if ages:
            os.utime(folder, (long_ago, long_ago))
    assert store.remove_unfinished(datetime.now(UTC) - timedelta(days=1)) == 2
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["begun", "taken-up"]
    assert len(list(store.work_folder("taken-up").iterdir())) == 2
    with pytest.raises(ValueError, match="not a name"):
        store.work_folder("../objects")
