"""Logs in memory, made of the pure modules alone, and the documents that a service would hand out of them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.ledger import merkle
from app.ledger.checkpoints import Checkpoint, SigningKey, sign_checkpoint
from app.ledger.commitments import Leaf, leaf_bytes, payload_commitment

ORIGIN = "log.example"
START = datetime(2026, 11, 28, 1, 2, 3, 4, tzinfo=UTC)

Json = dict[str, Any]


def signing_key(number: int = 1, name: str = ORIGIN) -> SigningKey:
    """The same key for the same number."""
    return SigningKey(name, Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"key %d" % number).digest()))


class Log:
    """A log that can be tampered with: every stored row is at hand, as the rows of tables are to a superuser.

    ``entries`` are in the JSON form, ``nodes`` by level and index, ``checkpoints`` signed notes by size.
    """

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = keys or (signing_key(),)
        self.entries: list[Json] = []
        self.nodes: dict[tuple[int, int], bytes] = {}
        self.checkpoints: dict[int, str] = {}

    @property
    def size(self) -> int:
        return len(self.entries)

    def append(self, kind: str = "edit.accepted", payload: Mapping[str, Any] | None = None, **fields: Any) -> Json:
        """Add an entry with this payload; fields not named are typical ones."""
        seq = self.size + 1
        content = {"number": seq} if payload is None else dict(payload)
        salt = hashlib.sha256(b"salt %d" % seq).digest()
        leaf = Leaf(
            seq=seq,
            at=START + timedelta(seconds=seq),
            kind=kind,
            payload_commitment=payload_commitment(salt, content),
            **{"actor_ref": "worker", "dataset_id": "digits", "model_id": "digits-model", **fields},
        )
        data = leaf_bytes(leaf)
        self.entries.append({**json.loads(data), "payload": content, "payload_salt": salt.hex()})
        self.store(merkle.leaf_hash(data))
        return self.entries[-1]

    def store(self, leaf_hash: bytes) -> None:
        """Store the nodes that the newest entry completes."""
        self.nodes.update(merkle.appended(self.size - 1, leaf_hash, lambda *at: self.nodes[at]))

    def erase(self, *ranges: tuple[int, int]) -> None:
        """Delete payloads and record it, as the service does."""
        self.forget(*ranges)
        self.append("ledger.payloads_erased", {"entries": [list(each) for each in ranges]})

    def forget(self, *ranges: tuple[int, int]) -> None:
        """Delete payloads, and say nothing."""
        for first, last in ranges:
            for entry in self.entries[first - 1 : last]:
                entry["payload"] = entry["payload_salt"] = None

    def rehash(self) -> None:
        """Compute every stored node again from the entries as they are now: a rewrite with right hashes."""
        entries, self.entries = self.entries, []
        self.nodes = {}
        for entry in entries:
            self.entries.append(entry)
            self.store(leaf_hash_of(entry))

    def note(self, size: int | None = None, *keys: SigningKey) -> str:
        """A signed checkpoint of the stored nodes."""
        size = self.size if size is None else size
        root = merkle.root(size, lambda *at: self.nodes[at])
        signers = keys or self.keys
        return sign_checkpoint(Checkpoint(signers[0].name, size, root), *signers)

    def publish(self) -> str:
        """Sign what is there and keep the note among the checkpoints."""
        self.checkpoints[self.size] = self.note()
        return self.checkpoints[self.size]

    def copy(self) -> Log:
        twin = Log(*self.keys)
        twin.entries = copy.deepcopy(self.entries)
        twin.nodes = dict(self.nodes)
        twin.checkpoints = dict(self.checkpoints)
        return twin

    def export(self) -> list[Json]:
        """The lines of the whole export; the last is a checkpoint of all, signed now unless one was published."""
        keys = [str(key.verifier) for key in self.keys]
        lines: list[Json] = [{"format": "modelmend-ledger/1", "origin": ORIGIN, "size": self.size, "keys": keys}]
        lines += [{"checkpoint": self.checkpoints[0]}] if 0 in self.checkpoints else []
        for index, entry in enumerate(self.entries):
            levels = (index + 1 & -(index + 1)).bit_length()
            nodes = [self.nodes[level, index >> level].hex() for level in range(levels)]
            lines.append({"entry": entry, "nodes": nodes})
            if index + 1 in self.checkpoints:
                lines.append({"checkpoint": self.checkpoints[index + 1]})
        if self.size not in self.checkpoints:
            lines.append({"checkpoint": self.note()})
        return copy.deepcopy(lines)

    def model_export(self, model_id: str = "digits-model") -> list[Json]:
        seqs = [entry["seq"] for entry in self.entries if entry["model_id"] == model_id]
        header = {"format": "modelmend-receipts/1", "model_id": model_id, "checkpoint": self.note()}
        return copy.deepcopy([header, *self._proven(seqs)])

    def receipt(self, *seqs: int) -> Json:
        receipt = {"format": "modelmend-receipt/1", "checkpoint": self.note(), "entries": self._proven(seqs)}
        return copy.deepcopy(receipt)

    def _proven(self, seqs: Sequence[int]) -> list[Json]:
        return [{"entry": self.entries[seq - 1], "inclusion_proof": self._proof(seq)} for seq in seqs]

    def _proof(self, seq: int) -> list[str]:
        return [digest.hex() for digest in merkle.inclusion_proof(seq - 1, self.size, lambda *at: self.nodes[at])]


def leaf_hash_of(entry: Json) -> bytes:
    """What the leaf of an entry in JSON hashes to, by the general encoder."""
    import rfc8785

    fields = {name: value for name, value in entry.items() if name not in {"payload", "payload_salt"}}
    return merkle.leaf_hash(rfc8785.dumps(fields))


def as_lines(values: Iterable[Json]) -> list[bytes]:
    """JSON lines as a service writes them."""
    return [json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for value in values]


def typical_log(entries: int = 21, every: int = 4) -> Log:
    """Entries of two models and no model, one erasure, a checkpoint after every few, none after the last one."""
    log = Log()
    log.publish()
    for number in range(1, entries + 1):
        if number == 11:
            log.erase((2, 3), (7, 7))
        else:
            log.append(
                model_id=(None, "digits-model", "another")[number % 3],
                payload={"number": number, "f1": 0.25 * number, "names": ["ö", "\U0001f600"], "none": None},
                job_id=f"00000000-0000-4000-8000-{number:012d}",
                parent_version=number,
                result_version=number + 1 if number % 2 else None,
                artifact_sha256=hashlib.sha256(b"%d" % number).hexdigest(),
                subject_ref="s" if number % 5 == 0 else None,
            )
        if number % every == 0 and number < entries:
            log.publish()
    return log
