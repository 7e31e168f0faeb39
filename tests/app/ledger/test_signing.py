from __future__ import annotations

import base64
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.ledger.checkpoints import Checkpoint, MalformedKey, SigningKey, VerifierKey, sign_checkpoint, verify_checkpoint
from app.ledger.signing import KeyDirectory, NoSigningKey, PublishedKey, SigningKeyError, parse_signer, signer_text
from tests.app.ledger.together import run_together

ORIGIN = "ledger.example/mend"
CHECKPOINT = Checkpoint(ORIGIN, 7, bytes(range(32)))
SIGNER = SigningKey(ORIGIN, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.fixture
def directory(tmp_path: Path) -> KeyDirectory:
    keys = KeyDirectory(tmp_path / "data" / "signing")
    assert keys.ensure(ORIGIN)
    return keys


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: KeyDirectory) -> list[str]:
    return sorted(path.name for path in directory.path.iterdir() if path.name != ".lock")


def test_private_keys_round_trip_and_are_of_the_form_that_note_signers_read() -> None:
    text = signer_text(SIGNER)
    head, encoded = text.rsplit("+", 1)
    assert head == f"PRIVATE+KEY+{ORIGIN}+{SIGNER.verifier.key_id.hex()}"
    assert base64.b64decode(encoded) == b"\x01" + bytes(range(32))
    assert parse_signer(text).verifier == SIGNER.verifier


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.removeprefix("PRIVATE+"),
        lambda text: text.replace("KEY", "key"),
        lambda text: text.replace(ORIGIN, "ledger.example/other"),
        lambda text: text.replace(ORIGIN, ""),
        lambda text: text[:-1],
        lambda text: text + "\n",
        lambda text: text.replace("+AQ", "+AA"),
        lambda text: text.rsplit("+", 1)[0] + "+",
    ],
)
def test_any_other_text_is_no_private_key_and_is_not_told(spoil: Callable[[str], str]) -> None:
    text = signer_text(SIGNER)
    with pytest.raises(MalformedKey) as refusal:
        parse_signer(spoil(text))
    assert text.rsplit("+", 1)[1][2:20] not in str(refusal.value)


def test_the_first_key_is_made_once_and_signs(directory: KeyDirectory) -> None:
    assert not directory.ensure(ORIGIN)
    assert not directory.ensure()
    assert directory.origin == ORIGIN
    assert names(directory) == ["0001.key", "0001.pub"]
    assert (mode(directory.path), mode(directory.path / "0001.key")) == (0o700, 0o600)
    (key,) = directory.signing_keys()
    assert directory.published() == [PublishedKey(key.verifier, retired=False)]
    assert (directory.path / "0001.pub").read_text() == f"{key.verifier}\n"
    note = sign_checkpoint(CHECKPOINT, key)
    assert verify_checkpoint(note, [p.key for p in directory.published()], origin=ORIGIN) == CHECKPOINT


def test_a_log_without_a_given_name_gets_a_random_one(tmp_path: Path) -> None:
    logs = [KeyDirectory(tmp_path / str(n)) for n in range(2)]
    for log in logs:
        assert log.ensure()
        head, digits = log.origin.split("/")
        assert head == "modelmend.local"
        assert len(bytes.fromhex(digits)) == 4
    assert logs[0].origin != logs[1].origin


@pytest.mark.parametrize("origin", ["", "two words", "a+b", "line\n"])
def test_an_origin_that_is_no_name_is_refused_before_anything_is_made(tmp_path: Path, origin: str) -> None:
    with pytest.raises(SigningKeyError, match="cannot be the name of a log"):
        KeyDirectory(tmp_path / "signing").ensure(origin)
    assert not (tmp_path / "signing").exists()


def test_a_log_keeps_its_name(directory: KeyDirectory) -> None:
    with pytest.raises(SigningKeyError, match=f"{ORIGIN}, not of ledger.example/other"):
        directory.ensure("ledger.example/other")


def test_of_several_processes_starting_at_once_one_makes_the_key(tmp_path: Path) -> None:
    path = tmp_path / "signing"
    answers = run_together(
        "from pathlib import Path; from app.ledger.signing import KeyDirectory",
        "print(KeyDirectory(Path(sys.argv[1])).ensure())",
        [[str(path)]] * 5,
    )
    assert sorted(answers) == ["False"] * 4 + ["True"]
    assert names(KeyDirectory(path)) == ["0001.key", "0001.pub"]


def test_of_several_threads_starting_at_once_one_makes_the_key(tmp_path: Path) -> None:
    path = tmp_path / "signing"
    together = threading.Barrier(8)

    def ensure(_: int) -> tuple[bool, VerifierKey]:
        keys = KeyDirectory(path)
        together.wait()
        return keys.ensure(), keys.signing_keys()[0].verifier

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ensure, range(8)))
    assert sum(made for made, _ in answers) == 1
    assert len({key for _, key in answers}) == 1


def test_rotation(directory: KeyDirectory) -> None:
    (old,) = directory.signing_keys()
    during = KeyDirectory(directory.path)
    new = directory.add_key()
    assert new.name == ORIGIN
    assert [key.verifier for key in during.signing_keys()] == [old.verifier, new]
    both = sign_checkpoint(CHECKPOINT, *during.signing_keys())
    directory.retire(new)
    assert [key.verifier for key in during.signing_keys()] == [new]
    assert during.published() == [PublishedKey(old.verifier, retired=True), PublishedKey(new, retired=False)]
    assert names(directory) == ["0001.pub", "0002.key", "0002.pub"]
    for holder_of in (old.verifier, new):
        assert verify_checkpoint(both, [holder_of], origin=ORIGIN) == CHECKPOINT
    directory.retire(new)
    assert len(directory.signing_keys()) == 1


def test_a_rotation_that_was_killed_half_way_is_cleaned_up_by_the_next(directory: KeyDirectory) -> None:
    directory.add_key()
    third = directory.add_key()
    assert len(directory.signing_keys()) == 3
    directory.retire(third)
    assert [key.verifier for key in directory.signing_keys()] == [third]
    assert [key.retired for key in directory.published()] == [True, True, False]


@pytest.mark.parametrize("first_to_retire", [0, 1])
def test_two_rotations_at_once_end_with_the_newest_key(directory: KeyDirectory, first_to_retire: int) -> None:
    added = [directory.add_key(), directory.add_key()]
    directory.retire(added[first_to_retire])
    directory.retire(added[1 - first_to_retire])
    assert [key.verifier for key in directory.signing_keys()] == [added[1]]


def test_readers_never_find_the_log_without_a_key_while_keys_rotate(directory: KeyDirectory) -> None:
    stop = threading.Event()

    def read() -> int:
        reads = 0
        while not stop.is_set():
            assert directory.signing_keys()
            reads += 1
        return reads

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for _ in range(10):
                directory.retire(directory.add_key())
        finally:
            stop.set()
        assert all(reader.result() for reader in readers)
    assert len(directory.published()) == 11


def test_retiring_never_leaves_the_log_without_a_key(directory: KeyDirectory) -> None:
    (first,) = directory.signing_keys()
    with pytest.raises(SigningKeyError, match="not one of the keys"):
        directory.retire(VerifierKey(ORIGIN, bytes(32)))
    second = directory.add_key()
    (directory.path / "0002.key").unlink()
    with pytest.raises(NoSigningKey):
        directory.retire(second)
    assert [key.verifier for key in directory.signing_keys()] == [first.verifier]


def test_what_a_killed_process_left_of_the_first_key_never_counts(tmp_path: Path) -> None:
    keys = KeyDirectory(tmp_path)
    tmp_path.chmod(0o700)
    (tmp_path / ".0001.key.new").write_text("PRIVATE+KEY+half")
    assert keys.published() == []
    with pytest.raises(NoSigningKey):
        keys.signing_keys()
    assert keys.ensure(ORIGIN)
    assert names(keys) == ["0001.key", "0001.pub"]


def test_a_private_key_without_its_public_one_does_not_sign_and_is_finished(directory: KeyDirectory) -> None:
    second = directory.add_key()
    (directory.path / "0002.pub").unlink()  # as a kill between the two files leaves it
    (directory.path / ".0002.pub.new").touch()
    (first,) = directory.signing_keys()
    assert [published.key for published in directory.published()] == [first.verifier]
    assert directory.add_key() == second
    assert [key.verifier for key in directory.signing_keys()] == [first.verifier, second]
    assert names(directory) == ["0001.key", "0001.pub", "0002.key", "0002.pub"]


def test_the_first_key_too_is_finished_unless_it_is_of_another_log(directory: KeyDirectory) -> None:
    (key,) = directory.signing_keys()
    (directory.path / "0001.pub").unlink()
    with pytest.raises(SigningKeyError, match="never published"):
        directory.ensure("ledger.example/other")
    assert directory.ensure()
    assert directory.signing_keys()[0].verifier == key.verifier


def test_a_killed_writers_second_link_to_a_private_key_goes_with_it(directory: KeyDirectory) -> None:
    (directory.path / ".0001.key.new").hardlink_to(directory.path / "0001.key")
    second = directory.add_key()
    (directory.path / ".0001.key.new").hardlink_to(directory.path / "0001.key")
    directory.retire(second)
    assert names(directory) == ["0001.pub", "0002.key", "0002.pub"]


def test_a_log_that_lost_its_private_keys_says_so_and_can_go_on(directory: KeyDirectory) -> None:
    (directory.path / "0001.key").unlink()
    for call in (directory.signing_keys, directory.ensure):
        with pytest.raises(NoSigningKey, match="gone"):
            call()
    new = directory.add_key()
    assert [key.verifier for key in directory.signing_keys()] == [new]
    assert directory.origin == ORIGIN


def test_a_key_that_the_service_could_not_read_is_not_made(
    directory: KeyDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(SigningKeyError, match=f"belongs to the user with id {owner}"):
        directory.add_key()
    assert names(directory) == ["0001.key", "0001.pub"]


def test_a_missing_folder(tmp_path: Path) -> None:
    keys = KeyDirectory(tmp_path / "signing")
    for call in (keys.signing_keys, keys.published, keys.add_key, lambda: keys.origin):
        with pytest.raises(SigningKeyError, match="cannot be read: No such file"):
            call()
    (tmp_path / "file").touch()
    with pytest.raises(SigningKeyError, match="cannot be made a folder"):
        KeyDirectory(tmp_path / "file" / "signing").ensure()


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o610])
def test_a_private_key_open_to_others_is_refused(directory: KeyDirectory, bits: int) -> None:
    (directory.path / "0001.key").chmod(bits)
    with pytest.raises(SigningKeyError, match="open to others"):
        directory.signing_keys()
    assert directory.origin == ORIGIN


@pytest.mark.parametrize("bits", [0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(directory: KeyDirectory, bits: int) -> None:
    directory.path.chmod(bits)
    for call in (directory.signing_keys, directory.published, directory.add_key, directory.ensure):
        with pytest.raises(SigningKeyError, match="Others can write"):
            call()


def test_a_private_key_of_another_public_key_is_refused(directory: KeyDirectory) -> None:
    path = directory.path / "0001.key"
    path.write_text(f"{signer_text(SIGNER)}\n")
    with pytest.raises(SigningKeyError, match="is not the private key of"):
        directory.signing_keys()


def test_keys_of_two_logs_in_one_folder_are_refused(directory: KeyDirectory, tmp_path: Path) -> None:
    other = KeyDirectory(tmp_path / "other")
    other.ensure("ledger.example/other")
    for kind in ("key", "pub"):
        (other.path / f"0001.{kind}").rename(directory.path / f"0002.{kind}")
    for call in (directory.signing_keys, directory.published, directory.add_key, directory.ensure):
        with pytest.raises(SigningKeyError, match="keys of several logs"):
            call()


@pytest.mark.parametrize("content", [b"", b"no newline", b"\xff\n", b"a+00000000+AQ==\n"])
@pytest.mark.parametrize("kind", ["key", "pub"])
def test_a_malformed_file_is_named(directory: KeyDirectory, kind: str, content: bytes) -> None:
    path = directory.path / f"0001.{kind}"
    path.write_bytes(content)
    with pytest.raises(SigningKeyError, match=str(path)):
        directory.signing_keys()


def test_a_link_that_leads_nowhere_is_an_error_not_an_endless_search(directory: KeyDirectory) -> None:
    path = directory.path / "0001.key"
    path.unlink()
    path.symlink_to(directory.path / "away")
    with pytest.raises(SigningKeyError, match="leads nowhere"):
        directory.signing_keys()


def test_more_than_9999_rotations_keep_their_order(directory: KeyDirectory) -> None:
    for kind in ("key", "pub"):
        (directory.path / f"0001.{kind}").rename(directory.path / f"9999.{kind}")
    new = directory.add_key()
    assert (directory.path / "10000.pub").read_text() == f"{new}\n"
    assert directory.signing_keys()[1].verifier == new
