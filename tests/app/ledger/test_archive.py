from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.ledger.archive import MAX_SIZE, ArchiveError, CheckpointArchive, ConflictingCheckpoint, DamagedCheckpoint
from app.ledger.checkpoints import (
    MAX_SIGNATURES,
    Checkpoint,
    MalformedCheckpoint,
    SigningKey,
    parse_checkpoint,
    sign_checkpoint,
    verify_checkpoint,
)
from app.ledger.merkle import EMPTY_ROOT
from tests.app.ledger.together import run_together

ORIGIN = "ledger.example/mend"
KEYS = [
    SigningKey(ORIGIN, Ed25519PrivateKey.from_private_bytes(n.to_bytes(32, "big"))) for n in range(MAX_SIGNATURES + 1)
]
OLD, NEW, WITNESS = KEYS[0], KEYS[1], SigningKey("witness.example", KEYS[2].private_key)


def checkpoint(size: int) -> Checkpoint:
    return Checkpoint(ORIGIN, size, hashlib.sha256(str(size).encode()).digest() if size else EMPTY_ROOT)


def note(size: int, *keys: SigningKey) -> str:
    return sign_checkpoint(checkpoint(size), *(keys or (OLD,)))


@pytest.fixture
def archive(tmp_path: Path) -> CheckpointArchive:
    return CheckpointArchive(tmp_path / "data" / "checkpoints")


def files(archive: CheckpointArchive) -> list[Path]:
    return sorted(archive.path.rglob("*.txt"))


def test_an_empty_archive(archive: CheckpointArchive) -> None:
    assert archive.newest() is None
    assert archive.at_least(0) is None
    assert list(archive.from_size(0)) == []
    assert not archive.path.exists()


def test_round_trip(archive: CheckpointArchive) -> None:
    archive.publish(note(1234))
    (path,) = files(archive)
    assert path == archive.path / "000/000/001/000000001234.txt"
    newest = archive.newest()
    assert newest == path.read_text() == note(1234)
    assert verify_checkpoint(newest, [OLD.verifier], origin=ORIGIN) == checkpoint(1234)
    assert list((archive.path / "unfinished").iterdir()) == []


def test_sizes_come_in_order_whatever_the_order_of_publication(archive: CheckpointArchive) -> None:
    sizes = [0, 1, 2, 9, 10, 999, 1000, 1001, 99_999, 1_000_000, 1_000_001, 2_000_999, 10**9, MAX_SIZE]
    for size in sizes[::2] + sizes[-1::-2]:
        archive.publish(note(size))
    assert [int(path.stem) for path in files(archive)] == sizes
    assert archive.newest() == note(MAX_SIZE)
    for bound in {b for size in sizes for b in (size - 1, size, size + 1)}:
        beyond = [note(size) for size in sizes if size >= bound]
        assert list(archive.from_size(bound)) == beyond
        assert archive.at_least(bound) == (beyond[0] if beyond else None)


def test_publishing_again_changes_nothing(archive: CheckpointArchive) -> None:
    archive.publish(note(5))
    (path,) = files(archive)
    before = path.stat()
    archive.publish(note(5))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_other_signatures_are_united(archive: CheckpointArchive) -> None:
    archive.publish(note(5, OLD, WITNESS))
    archive.publish(note(5, OLD, NEW))
    united = archive.newest()
    assert united == note(5, OLD, WITNESS, NEW)
    for key in (OLD, NEW, WITNESS):
        assert verify_checkpoint(united, [key.verifier], origin=ORIGIN) == checkpoint(5)
    archive.publish(note(5, NEW))
    assert archive.newest() == united


def test_of_two_signatures_by_one_key_the_newer_counts(archive: CheckpointArchive) -> None:
    wrong = sign_checkpoint(checkpoint(6), OLD).partition("\n\n")[2]
    archive.publish(f"{checkpoint(5).text}\n{wrong}")
    archive.publish(note(5))
    assert archive.newest() == note(5)


def test_more_signatures_than_a_checkpoint_may_have(archive: CheckpointArchive) -> None:
    archive.publish(note(5, *KEYS[:MAX_SIGNATURES]))
    with pytest.raises(ArchiveError, match="signatures"):
        archive.publish(note(5, KEYS[-1]))
    assert archive.newest() == note(5, *KEYS[:MAX_SIGNATURES])


@pytest.mark.parametrize(
    "other", [Checkpoint(ORIGIN, 5, bytes(32)), Checkpoint("ledger.example/other", 5, checkpoint(5).root)]
)
def test_another_history_of_the_same_size_is_never_overwritten(archive: CheckpointArchive, other: Checkpoint) -> None:
    archive.publish(note(5))
    with pytest.raises(ConflictingCheckpoint, match=r"000000000005\.txt"):
        archive.publish(sign_checkpoint(other, OLD, NEW))
    assert archive.newest() == note(5)


def test_what_is_not_a_checkpoint_is_not_archived(archive: CheckpointArchive) -> None:
    with pytest.raises(MalformedCheckpoint):
        archive.publish(note(5).replace("5", "05", 1))
    with pytest.raises(ArchiveError, match="no name"):
        archive.publish(note(MAX_SIZE + 1))
    assert not archive.path.exists()
    assert archive.at_least(MAX_SIZE + 1) is None


@pytest.mark.parametrize("content", [b"", note(5).encode()[:-20], b"\xff", note(6).encode()])
def test_a_damaged_file_is_named_and_not_overwritten(archive: CheckpointArchive, content: bytes) -> None:
    archive.publish(note(5))
    (path,) = files(archive)
    path.write_bytes(content)
    for call in (archive.newest, lambda: archive.at_least(1), lambda: archive.publish(note(5))):
        with pytest.raises(DamagedCheckpoint, match=str(path)):
            call()
    assert path.read_bytes() == content


def test_folders_and_files_that_a_kill_left_are_passed_over(archive: CheckpointArchive) -> None:
    archive.publish(note(5))
    for empty in ("000/000/900", "000/777/000", "999"):
        (archive.path / empty).mkdir(parents=True)
    abandoned, fresh = archive.path / "unfinished" / "abandoned", archive.path / "unfinished" / "fresh"
    for left in (abandoned, fresh):
        left.write_text(note(7)[:40])
    os.utime(abandoned, (0, 0))
    assert archive.newest() == note(5)
    assert list(archive.from_size(1)) == [note(5)]
    archive.publish(note(6))
    assert (abandoned.exists(), fresh.exists()) == (False, True)  # another process may be writing the fresh one


def test_several_processes_publish_at_once(archive: CheckpointArchive) -> None:
    """All publish the same sizes, each with a key of its own: no signature may be lost."""
    sizes, writers = range(998, 1003), KEYS[:4]
    notes = [[note(size, key) for size in sizes] for key in writers]
    run_together(
        "from pathlib import Path; from app.ledger.archive import CheckpointArchive",
        "archive = CheckpointArchive(Path(sys.argv[1])); [archive.publish(note) for note in sys.argv[2:]]",
        [[str(archive.path), *own] for own in notes],
    )
    check_united(archive, sizes, writers)


def test_several_threads_publish_at_once(archive: CheckpointArchive) -> None:
    sizes, writers = range(998, 1003), KEYS[:8]
    together = threading.Barrier(len(writers))

    def publish(key: SigningKey) -> None:
        together.wait()
        for size in sizes:
            archive.publish(note(size, key))

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(publish, writers))
    check_united(archive, sizes, writers)


def check_united(archive: CheckpointArchive, sizes: range, writers: list[SigningKey]) -> None:
    published = list(archive.from_size(0))
    assert [parse_checkpoint(text).checkpoint for text in published] == [checkpoint(size) for size in sizes]
    for text in published:
        for key in writers:
            verify_checkpoint(text, [key.verifier], origin=ORIGIN)
        assert len(parse_checkpoint(text).signatures) == len(writers)
    assert list((archive.path / "unfinished").iterdir()) == []


def test_of_two_histories_published_at_once_one_stays(archive: CheckpointArchive) -> None:
    together = threading.Barrier(8)

    def publish(n: int) -> bool:
        mine = sign_checkpoint(Checkpoint(ORIGIN, 5, bytes([n]) * 32), OLD)
        together.wait()
        try:
            archive.publish(mine)
        except ConflictingCheckpoint:
            return False
        return archive.newest() == mine

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(publish, range(8))) == 1


def test_few_folders_are_listed_to_find_one_checkpoint(
    archive: CheckpointArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.publish(note(5))
    for folder in range(1, 200):  # every fiftieth has files
        (archive.path / f"000/000/{folder:03d}").mkdir()
        if folder % 50 == 0:
            for size in range(folder * 1000, folder * 1000 + 1000, 100):
                (archive.path / f"000/000/{folder:03d}/{size:012d}.txt").write_text(note(size))
    listed: list[object] = []
    listdir = os.listdir

    def counted(path: Path) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    assert archive.at_least(100_001) == note(100_100)
    assert len(listed) <= 4
    listed.clear()
    assert archive.newest() == note(150_900)
    assert len(listed) <= 3 + 50  # empty folders on the way are looked into
    assert len(list(archive.from_size(0))) == 1 + 3 * 10
