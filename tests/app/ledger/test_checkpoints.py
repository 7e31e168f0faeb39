from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.checkpoints import (
    MAX_SIGNATURES,
    Checkpoint,
    MalformedCheckpoint,
    MalformedKey,
    SigningKey,
    UntrustedCheckpoint,
    VerifierKey,
    parse_checkpoint,
    sign_checkpoint,
    verify_checkpoint,
)
from app.ledger.merkle import EMPTY_ROOT

ORIGIN = "ledger.example/mend"
ROOT = bytes(range(32))
CHECKPOINT = Checkpoint(ORIGIN, 1234, ROOT)


def key(seed: int, name: str = ORIGIN) -> SigningKey:
    return SigningKey(name, Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


OLD, NEW, STRANGER, WITNESS = key(1), key(2), key(3), key(4, "witness.example/w1")
NOTE = sign_checkpoint(CHECKPOINT, OLD)


def test_the_form() -> None:
    body, _, signatures = NOTE.partition("\n\n")
    assert body == f"{ORIGIN}\n1234\n{base64.b64encode(ROOT).decode()}"
    dash, name, signature = signatures.rstrip("\n").split(" ")
    assert (dash, name) == ("\u2014", ORIGIN)
    decoded = base64.b64decode(signature)
    public = OLD.private_key.public_key()
    key_id = hashlib.sha256(ORIGIN.encode() + b"\n\x01" + public.public_bytes_raw()).digest()[:4]
    assert decoded[:4] == key_id
    public.verify(decoded[4:], f"{body}\n".encode())


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30),
    st.integers(1, 10**19 - 1),
    st.binary(min_size=32, max_size=32),
)
def test_round_trip(origin: str, size: int, root: bytes) -> None:
    checkpoint = Checkpoint(origin, size, root)
    note = sign_checkpoint(checkpoint, OLD, WITNESS)
    assert parse_checkpoint(note).checkpoint == checkpoint
    assert verify_checkpoint(note, [OLD.verifier], origin=origin) == checkpoint


def test_the_empty_tree() -> None:
    empty = Checkpoint(ORIGIN, 0, EMPTY_ROOT)
    assert verify_checkpoint(sign_checkpoint(empty, OLD), [OLD.verifier], origin=ORIGIN) == empty
    with pytest.raises(MalformedCheckpoint):
        Checkpoint(ORIGIN, 0, ROOT)


def test_any_flipped_bit_is_refused() -> None:
    raw = NOTE.encode()
    for place in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[place // 8] ^= 1 << place % 8
        try:
            note = changed.decode()
        except UnicodeDecodeError:
            continue
        with pytest.raises((MalformedCheckpoint, UntrustedCheckpoint)):
            verify_checkpoint(note, [OLD.verifier], origin=ORIGIN)


def test_wrong_key_no_key_and_another_log() -> None:
    for keys in ([STRANGER.verifier], []):
        with pytest.raises(UntrustedCheckpoint, match="no known key"):
            verify_checkpoint(NOTE, keys, origin=ORIGIN)
    with pytest.raises(UntrustedCheckpoint, match=r"not of other\.example"):
        verify_checkpoint(NOTE, [OLD.verifier], origin="other.example")
    same_key_other_name = VerifierKey("other.example", OLD.verifier.public_key)
    with pytest.raises(UntrustedCheckpoint, match="no known key"):
        verify_checkpoint(NOTE, [same_key_other_name], origin=ORIGIN)


def test_rotation() -> None:
    during, after = sign_checkpoint(CHECKPOINT, OLD, NEW), sign_checkpoint(CHECKPOINT, NEW)
    published = [NEW.verifier, OLD.verifier]
    for note in (NOTE, during, after):
        assert verify_checkpoint(note, published, origin=ORIGIN) == CHECKPOINT
    assert verify_checkpoint(during, [OLD.verifier], origin=ORIGIN) == CHECKPOINT
    with pytest.raises(UntrustedCheckpoint):
        verify_checkpoint(after, [OLD.verifier], origin=ORIGIN)


def test_unknown_signatures_are_ignored_whatever_their_algorithm() -> None:
    other_algorithm = f"\u2014 {ORIGIN} {base64.b64encode(b'abcd' + bytes(3000)).decode()}\n"
    note = sign_checkpoint(CHECKPOINT, WITNESS, STRANGER, OLD) + other_algorithm
    assert verify_checkpoint(note, [OLD.verifier], origin=ORIGIN) == CHECKPOINT
    assert [s.name for s in parse_checkpoint(note).signatures] == [WITNESS.name, ORIGIN, ORIGIN, ORIGIN]


@pytest.mark.parametrize("forged", [bytes(64), bytes(63), b"x"])
def test_a_forged_line_of_a_known_key_spoils_the_note(forged: bytes) -> None:
    line = f"\u2014 {NEW.name} {base64.b64encode(NEW.verifier.key_id + forged).decode()}\n"
    assert verify_checkpoint(NOTE + line, [OLD.verifier], origin=ORIGIN) == CHECKPOINT
    with pytest.raises(UntrustedCheckpoint, match="is wrong"):
        verify_checkpoint(NOTE + line, [OLD.verifier, NEW.verifier], origin=ORIGIN)


def test_a_signature_of_another_checkpoint_is_refused() -> None:
    other = sign_checkpoint(Checkpoint(ORIGIN, 1235, ROOT), OLD)
    spliced = NOTE.partition("\n\n")[0] + "\n\n" + other.partition("\n\n")[2]
    with pytest.raises(UntrustedCheckpoint, match="is wrong"):
        verify_checkpoint(spliced, [OLD.verifier], origin=ORIGIN)


B64 = base64.b64encode(ROOT).decode()
LINES = NOTE.partition("\n\n")[2]


@pytest.mark.parametrize(
    "note",
    [
        "",
        "\n\n",
        NOTE.partition("\n\n")[0],
        NOTE[:-1],
        NOTE + "\n",
        NOTE + "more\n",
        "\n" + NOTE,
        NOTE.replace("\n", "\r\n"),
        NOTE.replace("\u2014", "-"),
        NOTE.replace("\u2014 ", "\u2014  "),
        NOTE.replace("\u2014 ", "\u2014\u00a0"),
        f"{ORIGIN}\n1234\n{B64}\n\n",
        f"{ORIGIN}\n1234\n{B64}\nextension\n\n{LINES}",
        f"\n1234\n{B64}\n\n{LINES}",
        f"{ORIGIN}\t\n1234\n{B64}\n\n{LINES}",
        f"{ORIGIN}\ud800\n1234\n{B64}\n\n{LINES}",
        f"{ORIGIN}\n01234\n{B64}\n\n{LINES}",
        f"{ORIGIN}\n+1234\n{B64}\n\n{LINES}",
        f"{ORIGIN}\n-1\n{B64}\n\n{LINES}",
        f"{ORIGIN}\n1_234\n{B64}\n\n{LINES}",
        f"{ORIGIN}\n1234 \n{B64}\n\n{LINES}",
        f"{ORIGIN}\n\u0661\u0662\n{B64}\n\n{LINES}",
        f"{ORIGIN}\n{'9' * 5000}\n{B64}\n\n{LINES}",
        f"{ORIGIN}\n1234\n{B64[:-1]}\n\n{LINES}",
        f"{ORIGIN}\n1234\n {B64}\n\n{LINES}",
        f"{ORIGIN}\n1234\n{B64[:-2]}9=\n\n{LINES}",  # the same bytes, with a spare bit set
        f"{ORIGIN}\n1234\n{base64.b64encode(ROOT[:-1]).decode()}\n\n{LINES}",
        f"{ORIGIN}\n0\n{B64}\n\n{LINES}",
        f"{ORIGIN}\n1234\n{B64}\n\n\u2014 {ORIGIN}\n",
        f"{ORIGIN}\n1234\n{B64}\n\n\u2014 {ORIGIN} AAAAAA==\n",
        f"{ORIGIN}\n1234\n{B64}\n\n\u2014 a+b AAAAAAAA\n",
        f"{ORIGIN}\n1234\n{B64}\n\n\u2014  AAAAAAAA\n",
        f"{ORIGIN}\n1234\n{B64}\n\n{LINES}{LINES.rstrip()} \n",
        f"{ORIGIN}\n1234\n{B64}\n\n{LINES * (MAX_SIGNATURES + 1)}",
    ],
)
def test_anything_else_is_malformed(note: str) -> None:
    assert note != NOTE
    with pytest.raises(MalformedCheckpoint):
        parse_checkpoint(note)


def test_as_many_signatures_as_allowed() -> None:
    note = f"{ORIGIN}\n1234\n{B64}\n\n{LINES * MAX_SIGNATURES}"
    assert verify_checkpoint(note, [OLD.verifier], origin=ORIGIN) == CHECKPOINT
    for keys in ([], [OLD] * (MAX_SIGNATURES + 1)):
        with pytest.raises(ValueError, match="signed by 1 to"):
            sign_checkpoint(CHECKPOINT, *keys)


@pytest.mark.parametrize(("origin", "size"), [("", 1), ("a\nb", 1), ("a\x00", 1), (ORIGIN, -1), (ORIGIN, 10**19)])
def test_what_is_no_checkpoint(origin: str, size: int) -> None:
    with pytest.raises(MalformedCheckpoint):
        Checkpoint(origin, size, ROOT)


PUBLIC_SEED = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]
PUBLISHED = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"


def test_the_verifier_key_of_the_published_test_key() -> None:
    signing = SigningKey("PeterNeumann", Ed25519PrivateKey.from_private_bytes(PUBLIC_SEED))
    assert str(signing.verifier) == PUBLISHED
    assert VerifierKey.parse(PUBLISHED) == signing.verifier


def test_every_changed_character_of_a_verifier_key_is_refused() -> None:
    for place, character in enumerate(PUBLISHED):
        with pytest.raises(MalformedKey):
            VerifierKey.parse(PUBLISHED[:place] + chr(ord(character) + 1) + PUBLISHED[place + 1 :])
        with pytest.raises(MalformedKey):
            VerifierKey.parse(PUBLISHED[:place])


@pytest.mark.parametrize("public", [b"\x01" + bytes(31), b"\x01" + bytes(33), b"\x02" + bytes(32), b""])
def test_keys_of_wrong_length_or_type_are_refused_even_with_the_right_key_id(public: bytes) -> None:
    key_id = hashlib.sha256(b"name\n" + public).hexdigest()[:8]
    with pytest.raises(MalformedKey):
        VerifierKey.parse(f"name+{key_id}+{base64.b64encode(public).decode()}")


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\u2003b", "a\nb", "a\x00b", "\ud800"])
def test_names_that_no_key_may_have(name: str) -> None:
    with pytest.raises(MalformedKey):
        VerifierKey(name, bytes(32))
    with pytest.raises(MalformedKey):
        SigningKey(name, OLD.private_key)


def test_keys_with_the_same_id_are_not_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify_checkpoint(NOTE, [OLD.verifier, OLD.verifier], origin=ORIGIN) == CHECKPOINT
    monkeypatch.setattr(VerifierKey, "key_id", b"same")  # finding a real collision takes 2**16 keys
    with pytest.raises(MalformedKey, match="two keys"):
        verify_checkpoint(NOTE, [OLD.verifier, NEW.verifier], origin=ORIGIN)


def test_a_signing_key_does_not_show_itself() -> None:
    assert "private" not in repr(OLD)
