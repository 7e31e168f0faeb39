"""The log's signing keys: files outside the database, for whoever has the database must not be able to sign.

::

    0001.pub    name+key id+key                 stays for ever, so that old checkpoints stay verifiable
    0001.key    PRIVATE+KEY+name+key id+seed    only while in use; mode 0600 in a folder of mode 0700

Numbers grow with age. A key exists once its ``.pub`` does, and that is written last, in one step: what a killed process
left unfinished never signs, and the next one to make a key finishes it. All keys have one name, the log's origin.
Sources: c2sp.org/signed-note for verifier keys, golang.org/x/mod/sumdb/note for the form of private ones.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.ledger.checkpoints import MalformedKey, SigningKey, VerifierKey
from app.ledger.durable_files import fsync_folder, locked, write_durably

_ED25519 = b"\x01"
_SEED_BYTES = 32
_SIGNER_PARTS = 5
_FILE = re.compile(r"([0-9]{4,})\.(key|pub)")
_LOCK = ".lock"


class SigningKeyError(RuntimeError):
    """The signing keys are not usable as they are; the message says what to do next."""


class NoSigningKey(SigningKeyError):
    """There is no key to sign with."""


@dataclass(frozen=True, slots=True)
class PublishedKey:
    """A key that signs or has signed. ``retired``: its private half is gone."""

    key: VerifierKey
    retired: bool


def signer_text(key: SigningKey) -> str:
    """The written form of a private key, ``PRIVATE+KEY+name+key id+base64(0x01 ‖ seed)``. A secret."""
    encoded = base64.b64encode(_ED25519 + key.private_key.private_bytes_raw()).decode("ascii")
    return f"PRIVATE+KEY+{key.name}+{key.verifier.key_id.hex()}+{encoded}"


def parse_signer(text: str) -> SigningKey:
    """Read the written form of a private key.

    Raises:
        MalformedKey: it is not of that form, of another algorithm, or its key id is another key's. The message never
            holds any of the text.
    """
    parts = text.split("+", _SIGNER_PARTS - 1)
    if len(parts) != _SIGNER_PARTS or parts[:2] != ["PRIVATE", "KEY"]:
        raise MalformedKey("a private key reads PRIVATE+KEY+name+key id+key")
    try:
        data = base64.b64decode(parts[4], validate=True)
    except ValueError:
        data = b""
    if len(data) != 1 + _SEED_BYTES or data[:1] != _ED25519:
        raise MalformedKey("the key is not base64 of an Ed25519 seed with its type byte")
    key = SigningKey(parts[2], Ed25519PrivateKey.from_private_bytes(data[1:]))
    if signer_text(key) != text:
        raise MalformedKey("the key id is not the one of this key, or the base64 is not canonical")
    return key


class KeyDirectory:
    """Signing keys of one log in a folder. Holds no state: what another process changes is seen by the next call.

    Every method raises ``SigningKeyError`` when the folder cannot be used: it is missing or not readable, others can
    write to it, a file is malformed, a private key can be read by others or is not the one of its ``.pub``, or the
    keys have several names.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def ensure(self, origin: str | None = None) -> bool:
        """Make the first key unless there is one. Of several callers at once, one makes it.

        Args:
            origin: name of the log; ``modelmend.local/`` and 8 random hex digits when absent.

        Returns:
            True for the caller that made it.

        Raises:
            NoSigningKey: there were keys, but the private ones are gone.
            SigningKeyError: the origin is not a key's name, or the keys there are another log's.
        """
        if origin is not None:
            _require_name(origin)
        if self.path.is_dir() and self._has_key(origin):
            return False
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fsync_folder(self.path.parent)
        except OSError as error:
            raise SigningKeyError(f"{self.path} cannot be made a folder for signing keys: {error.strerror}.") from error
        with self._changing():
            if self._has_key(origin):
                return False
            self._make(origin)
        return True

    def signing_keys(self) -> list[SigningKey]:
        """Every private key, oldest first: one, or two and more while keys rotate.

        Raises:
            NoSigningKey: there is none.
        """
        numbers = self._numbers()
        while True:
            try:
                keys = [self._signing_key(number) for number in sorted(numbers["key"] & numbers["pub"])]
            except FileNotFoundError as error:
                before, numbers = numbers, self._numbers()
                if numbers == before:
                    raise SigningKeyError(f"{error.filename} leads nowhere.") from error
                continue  # it was retired while we looked
            if not keys:
                raise NoSigningKey(self._nothing(numbers["pub"]))
            self._require_one_name([key.name for key in keys])
            return keys

    def published(self) -> list[PublishedKey]:
        """Every key that ever signed, oldest first; reads no private key."""
        numbers = self._numbers()
        keys = [PublishedKey(self._verifier(n), retired=n not in numbers["key"]) for n in sorted(numbers["pub"])]
        self._require_one_name([published.key.name for published in keys])
        return keys

    @property
    def origin(self) -> str:
        """The log's name.

        Raises:
            NoSigningKey: there is no key yet.
        """
        keys = self.published()
        if not keys:
            raise NoSigningKey(self._nothing(set()))
        return keys[0].key.name

    def add_key(self) -> VerifierKey:
        """Make one more key, with which everything is signed from now on beside the older ones.

        It is the first half of a rotation, and also the way on when the private keys are lost. A key that a killed
        call left unfinished is finished and returned.

        Raises:
            NoSigningKey: the log has no key and so no name yet.
            SigningKeyError: the older private keys are another user's, who could not read this one.
        """
        with self._changing():
            for number in self._numbers()["key"]:
                if (owner := self._file(number, "key").stat().st_uid) != os.geteuid():
                    raise SigningKeyError(
                        f"{self._file(number, 'key')} belongs to the user with id {owner}, who could not read a key "
                        "made by this one. Run this as that user."
                    )
            return self._make(self.origin)

    def retire(self, keep: VerifierKey) -> None:
        """Remove the private keys older than ``keep``: the second half of a rotation.

        Only older ones, so that rotations at the same time end with the newest key. Again changes nothing.

        Raises:
            SigningKeyError: ``keep`` is not one of the keys, or nothing would be left to sign with.
        """
        with self._changing():
            numbers = self._numbers()
            number = next((n for n in numbers["pub"] if self._verifier(n) == keep), None)
            if number is None:
                raise SigningKeyError(f"{keep.name}+{keep.key_id.hex()} is not one of the keys in {self.path}.")
            if not any(n >= number for n in numbers["key"] & numbers["pub"]):
                raise NoSigningKey(f"The private key of {keep.name}+{keep.key_id.hex()} is not in {self.path}.")
            self._remove_unfinished()  # one may be a second link to a private key
            for old in sorted(n for n in numbers["key"] if n < number):
                self._file(old, "key").unlink()
            fsync_folder(self.path)

    def _has_key(self, origin: str | None) -> bool:
        """Raises also for keys of another log, and for a log that has lost its private ones."""
        published = self.published()
        if not published:
            return False
        name = published[0].key.name
        if origin not in {None, name}:
            raise SigningKeyError(
                f"The keys in {self.path} are of the log {name}, not of {origin}. A log keeps its name: configure "
                "that one, or another folder for signing keys."
            )
        if all(key.retired for key in published):
            raise NoSigningKey(self._nothing({1}))
        return True

    def _make(self, origin: str | None) -> VerifierKey:
        """A new key, durable. The caller holds the lock."""
        numbers = self._numbers()
        self._remove_unfinished()
        newest = max(numbers["key"] | numbers["pub"], default=0)
        if newest in numbers["key"] - numbers["pub"]:
            key = self._private(newest)
        else:
            newest += 1
            name = origin if origin is not None else f"modelmend.local/{secrets.token_hex(4)}"
            key = SigningKey(name, Ed25519PrivateKey.generate())
            self._put(newest, "key", signer_text(key))
        if origin is not None and key.name != origin:
            raise SigningKeyError(
                f"{self._file(newest, 'key')} is of the log {key.name}, not of {origin}, and was never published. "
                "Remove it."
            )
        self._put(newest, "pub", str(key.verifier))
        return key.verifier

    def _put(self, number: int, kind: str, text: str) -> None:
        path = self._file(number, kind)
        unfinished = path.with_name(f".{path.name}.new")
        write_durably(unfinished, f"{text}\n", mode=0o600 if kind == "key" else 0o644)
        # Not a rename: it would replace a key that is there.
        path.hardlink_to(unfinished)
        unfinished.unlink()
        fsync_folder(self.path)

    def _remove_unfinished(self) -> None:
        for left in self.path.glob(".*.new"):
            left.unlink()

    def _numbers(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {"key": set(), "pub": set()}
        try:
            facts = self.path.stat()
            names = os.listdir(self.path)  # noqa: PTH208 - names are all that is wanted, at each checkpoint
        except OSError as error:
            raise SigningKeyError(
                f"The folder of signing keys, {self.path}, cannot be read: {error.strerror}. `modelmend serve` makes "
                "it; a log that had one needs its backup."
            ) from error
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SigningKeyError(f"Others can write to {self.path}: `chmod 700` it, after a look at what is in it.")
        for name in names:
            if parts := _FILE.fullmatch(name):
                found[parts[2]].add(int(parts[1]))
        return found

    def _signing_key(self, number: int) -> SigningKey:
        key = self._private(number)
        if key.verifier != self._verifier(number):
            raise SigningKeyError(
                f"{self._file(number, 'key')} is not the private key of {self._file(number, 'pub')}. Restore both from "
                "one backup."
            )
        return key

    def _private(self, number: int) -> SigningKey:
        path = self._file(number, "key")
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise SigningKeyError(
                        f"The private key {path} is open to others: `chmod 600` it, and rotate it if one may have "
                        "read it."
                    )
                return parse_signer(_line(file.read()))
        except MalformedKey as error:
            raise SigningKeyError(f"{path} is not a private key: {error}. Restore it from a backup.") from error
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SigningKeyError(f"The private key {path} cannot be read: {error.strerror}.") from error

    def _verifier(self, number: int) -> VerifierKey:
        path = self._file(number, "pub")
        try:
            return VerifierKey.parse(_line(path.read_bytes()))
        except MalformedKey as error:
            raise SigningKeyError(f"{path} is not a verifier key: {error}. Restore it from a backup.") from error
        except OSError as error:
            raise SigningKeyError(f"The verifier key {path} cannot be read: {error.strerror}.") from error

    def _require_one_name(self, names: list[str]) -> None:
        if len(set(names)) > 1:
            raise SigningKeyError(
                f"{self.path} holds keys of several logs, {' and '.join(sorted(set(names)))}. Give each its own folder."
            )

    def _nothing(self, published: set[int]) -> str:
        if published:
            return (
                f"The private signing keys in {self.path} are gone. Restore them from a backup, or run "
                "`modelmend keys rotate-signing` for a new one."
            )
        return f"There is no signing key in {self.path} yet. `modelmend serve` makes one."

    def _file(self, number: int, kind: str) -> Path:
        return self.path / f"{number:04d}.{kind}"

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._numbers()  # refuses a folder that is missing or open to others
        try:
            with locked(self.path / _LOCK):
                yield
        except OSError as error:
            raise SigningKeyError(f"Keys in {self.path} cannot be changed: {error.strerror}.") from error


def _require_name(origin: str) -> None:
    try:
        VerifierKey(origin, bytes(32))
    except MalformedKey as error:
        raise SigningKeyError(f"{origin!r} cannot be the name of a log: {error}.") from error


def _line(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise MalformedKey("it is not UTF-8") from None
    if not text.endswith("\n"):
        raise MalformedKey("it does not end with a newline")
    return text[:-1]
