"""Signed checkpoints of the ledger: C2SP ``tlog-checkpoint`` in a C2SP ``signed-note`` with Ed25519 (RFC 8032).

The form, each line ended by one newline, the signature being over the first three lines::

    <origin>
    <number of leaves, decimal>
    <root, base64>

    — <key name> <base64(key id, 4 bytes ‖ signature, 64 bytes)>

Whoever keeps one can later hold the log to it. Several signature lines are usual: an old and a new key while keys
rotate, and the cosignatures of witnesses. Sources: c2sp.org/tlog-checkpoint, c2sp.org/signed-note.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from app.ledger.merkle import EMPTY_ROOT, HASH_BYTES

MAX_SIGNATURES = 64
"""More signature lines than this are refused; the note's specification asks for at least 16."""

_ED25519 = b"\x01"
_PUBLIC_KEY_BYTES = 32
_KEY_ID_BYTES = 4
_DASH = "\N{EM DASH} "
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_KEY_ID = re.compile(r"[0-9a-f]{8}")
_CONTROL = re.compile(r"[\x00-\x1f]")


class MalformedCheckpoint(ValueError):
    """The text is not a checkpoint, to the letter of its specification."""


class MalformedKey(ValueError):
    """A key or its name is not of the signed-note form, or two known keys cannot be told apart."""


class UntrustedCheckpoint(ValueError):
    """Well formed, but not signed by a known key, wrongly signed in the name of one, or of another log."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log commits to: the root of its first ``size`` leaves.

    Raises:
        MalformedCheckpoint: the origin is empty or holds control characters, the size is not within 0 and 10**19 - 1,
            the root is not 32 bytes, or an empty tree has any root but its own.
    """

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        if not _is_plain(self.origin):
            raise MalformedCheckpoint("an origin is one non-empty line of Unicode without control characters")
        if not _SIZE.fullmatch(str(self.size)):
            raise MalformedCheckpoint(f"{self.size} is no size of a tree")
        if len(self.root) != HASH_BYTES:
            raise MalformedCheckpoint(f"a root has {HASH_BYTES} bytes, not {len(self.root)}")
        if self.size == 0 and self.root != EMPTY_ROOT:
            raise MalformedCheckpoint("the root of an empty tree is the hash of nothing")

    @property
    def text(self) -> str:
        """The signed lines, with the last newline, without the blank line."""
        return f"{self.origin}\n{self.size}\n{_encode(self.root)}\n"


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key under a name, written ``name+<key id, 8 hex digits>+base64(0x01 ‖ public key)``.

    Raises:
        MalformedKey: the name is empty or holds white space, ``+`` or control characters, or the key is not 32 bytes.
    """

    name: str
    public_key: bytes

    def __post_init__(self) -> None:
        if not _is_key_name(self.name):
            raise MalformedKey("a key's name is not empty and has no white space, plus sign or control character")
        if len(self.public_key) != _PUBLIC_KEY_BYTES:
            raise MalformedKey(f"a public key has {_PUBLIC_KEY_BYTES} bytes, not {len(self.public_key)}")

    @property
    def key_id(self) -> bytes:
        """First 4 bytes of ``SHA-256(name ‖ 0x0A ‖ 0x01 ‖ public key)``: an address, not a proof of identity."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public_key).digest()[:_KEY_ID_BYTES]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{_encode(_ED25519 + self.public_key)}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Read the written form.

        Raises:
            MalformedKey: it is not of that form, of another algorithm, or its key id is not that of the key.
        """
        # Base64 may contain plus signs, a name may not.
        parts = text.split("+", 2)
        if len(parts) != 3 or not _KEY_ID.fullmatch(parts[1]):
            raise MalformedKey("a verifier key reads name+key id+key")
        encoded = _decode(parts[2])
        if encoded is None or encoded[:1] != _ED25519:
            raise MalformedKey("the key is not base64 of an Ed25519 key with its type byte")
        key = cls(parts[0], encoded[1:])
        if key.key_id.hex() != parts[1]:
            raise MalformedKey(f"the key id of this key is {key.key_id.hex()}, not {parts[1]}")
        return key


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key under a name. The name is by convention the origin of the log that signs with it."""

    name: str
    private_key: Ed25519PrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        if not _is_key_name(self.name):
            raise MalformedKey("a key's name is not empty and has no white space, plus sign or control character")

    @property
    def verifier(self) -> VerifierKey:
        return VerifierKey(self.name, self.private_key.public_key().public_bytes_raw())


@dataclass(frozen=True, slots=True)
class CheckpointSignature:
    """One signature line. For a key that is not known, ``signature`` is of whatever algorithm and length."""

    name: str
    key_id: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint as read, with its signatures unverified: believe nothing in it yet."""

    checkpoint: Checkpoint
    signatures: tuple[CheckpointSignature, ...]


def sign_checkpoint(checkpoint: Checkpoint, *keys: SigningKey) -> str:
    """The signed note, with one signature line per key in their order.

    Raises:
        ValueError: no key, or more than ``MAX_SIGNATURES``.
    """
    if not 1 <= len(keys) <= MAX_SIGNATURES:
        raise ValueError(f"a checkpoint is signed by 1 to {MAX_SIGNATURES} keys, not {len(keys)}")
    message = checkpoint.text.encode()
    lines = (f"{_DASH}{k.name} {_encode(k.verifier.key_id + k.private_key.sign(message))}\n" for k in keys)
    return f"{checkpoint.text}\n{''.join(lines)}"


def parse_checkpoint(note: str) -> SignedCheckpoint:
    """Read a signed note strictly: there is one way to write each checkpoint, and anything else is refused.

    Extension lines, which the specification discourages because nobody can audit them, are refused too.

    Raises:
        MalformedCheckpoint: it is not of the form above.
    """
    text, separator, signed = note.partition("\n\n")
    lines = text.split("\n")
    if not separator or len(lines) != 3:
        raise MalformedCheckpoint("a checkpoint is three lines, a blank line and signatures")
    origin, size, encoded = lines
    if not _SIZE.fullmatch(size):
        raise MalformedCheckpoint("the size is not a decimal number without leading zeros")
    root = _decode(encoded)
    if root is None:
        raise MalformedCheckpoint("the root is not canonical base64")
    if not signed.endswith("\n"):
        raise MalformedCheckpoint("the last signature line has no newline, or there is none")
    signature_lines = signed[:-1].split("\n")
    if len(signature_lines) > MAX_SIGNATURES:
        raise MalformedCheckpoint(f"more than {MAX_SIGNATURES} signatures")
    return SignedCheckpoint(Checkpoint(origin, int(size), root), tuple(map(_parse_signature, signature_lines)))


def verify_checkpoint(note: str, keys: Iterable[VerifierKey], *, origin: str) -> Checkpoint:
    """Read a signed note and believe it if at least one known key signed it.

    A signature line is ignored if no known key has both its name and its key id. Every line that names a known key
    must verify, so a forged line spoils the note even beside a good one.

    Args:
        keys: present and past keys of the log; past ones keep old checkpoints verifiable.
        origin: the log that is meant, so that a checkpoint of one log is not taken for another's.

    Raises:
        MalformedCheckpoint: it cannot be read.
        MalformedKey: two different known keys have the same name and key id.
        UntrustedCheckpoint: it is of another log, or not signed by a known key, or wrongly in the name of one.
    """
    known: dict[tuple[str, bytes], VerifierKey] = {}
    for key in keys:
        if known.setdefault((key.name, key.key_id), key) != key:
            raise MalformedKey(f"two keys are called {key.name}+{key.key_id.hex()}")
    signed = parse_checkpoint(note)
    if signed.checkpoint.origin != origin:
        raise UntrustedCheckpoint(f"a checkpoint of {signed.checkpoint.origin}, not of {origin}")
    message = signed.checkpoint.text.encode()
    verified = False
    for line in signed.signatures:
        signer = known.get((line.name, line.key_id))
        if signer is None:
            continue
        try:
            Ed25519PublicKey.from_public_bytes(signer.public_key).verify(line.signature, message)
        except (InvalidSignature, ValueError) as error:
            raise UntrustedCheckpoint(f"the signature of {line.name}+{line.key_id.hex()} is wrong") from error
        verified = True
    if not verified:
        raise UntrustedCheckpoint("no known key has signed the checkpoint")
    return signed.checkpoint


def _parse_signature(line: str) -> CheckpointSignature:
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space or not _is_key_name(name):
        raise MalformedCheckpoint("a signature line is a dash, the key's name and the signature")
    decoded = _decode(encoded)
    if decoded is None or len(decoded) <= _KEY_ID_BYTES:
        raise MalformedCheckpoint("a signature is canonical base64 of a key id and what it signed")
    return CheckpointSignature(name, decoded[:_KEY_ID_BYTES], decoded[_KEY_ID_BYTES:])


def _is_key_name(name: str) -> bool:
    return _is_plain(name) and "+" not in name and not any(map(str.isspace, name))


def _is_plain(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return bool(line) and not _CONTROL.search(line)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes | None:
    # Base64 has spare bits at its end; only the encoding with zeros there is canonical.
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if _encode(data) == text else None
