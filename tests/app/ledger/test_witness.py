"""What a witness keeps, and when it raises the alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.ledger import merkle
from app.ledger.checkpoints import Checkpoint
from app.ledger.witness import Alarm, CannotWitness, look
from tests.app.ledger.logs import Log, signing_key

KEYS = [signing_key().verifier]


class Shown:
    """A log as it answers over the network."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.note: str | None = None
        self.proof: list[str] | None = None
        self.asked: list[tuple[int, int]] = []

    def checkpoint(self) -> str:
        return self.log.note() if self.note is None else self.note

    def consistency_proof(self, first: int, second: int) -> list[str]:
        self.asked.append((first, second))
        if self.proof is not None:
            return self.proof
        return [digest.hex() for digest in merkle.consistency_proof(first, second, lambda *at: self.log.nodes[at])]


def log_of(size: int, actor: str = "worker") -> Log:
    log = Log()
    for _ in range(size):
        log.append(actor_ref=actor)
    return log


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "last.txt"


def test_a_growing_log_is_followed(state: Path) -> None:
    shown = Shown(log_of(0))
    before: Checkpoint | None = None
    for growth in (0, 0, 1, 3, 0, 7):
        for _ in range(growth):
            shown.log.append()
        sighting = look(shown, KEYS, state)
        assert sighting.before == before
        assert sighting.checkpoint.size == shown.log.size
        assert state.read_text(encoding="utf-8") == shown.log.note()
        before = sighting.checkpoint
    assert shown.asked == [(0, 1), (1, 4), (4, 11)]
    assert list(state.parent.iterdir()) == [state]


def test_signatures_of_new_keys_are_kept_though_nothing_was_added(state: Path) -> None:
    shown = Shown(log_of(3))
    look(shown, KEYS, state)
    shown.log.keys = (signing_key(1), signing_key(2))
    look(shown, KEYS, state)
    shown.log.keys = (signing_key(2),)
    look(shown, [signing_key(1).verifier, signing_key(2).verifier], state)
    assert state.read_text(encoding="utf-8") == shown.log.note()


def alarmed(shown: Shown, state: Path) -> Alarm:
    kept = state.read_bytes() if state.exists() else None
    with pytest.raises(Alarm) as alarm:
        look(shown, KEYS, state)
    assert (state.read_bytes() if state.exists() else None) == kept
    return alarm.value


def test_a_log_that_went_back(state: Path) -> None:
    look(Shown(log_of(5)), KEYS, state)
    alarm = alarmed(Shown(log_of(4)), state)
    assert str(alarm) == "The log went back: it has signed 5 entries and now shows 4."
    assert alarm.evidence == (log_of(5).note(), log_of(4).note())


def test_a_log_of_the_same_size_with_another_history(state: Path) -> None:
    look(Shown(log_of(5)), KEYS, state)
    alarm = alarmed(Shown(log_of(5, "operator")), state)
    assert "two different histories of 5 entries" in str(alarm)
    assert alarm.evidence == (log_of(5).note(), log_of(5, "operator").note())


def test_a_log_that_was_rewritten_and_grew(state: Path) -> None:
    look(Shown(log_of(5)), KEYS, state)
    alarm = alarmed(Shown(log_of(9, "operator")), state)
    assert "cannot show that its 9 entries begin with the 5" in str(alarm)
    assert "another root of the first 5 leaves" in str(alarm)


@pytest.mark.parametrize("proof", [[], ["00" * 32], ["00"], ["x"], ["AB" * 32]])
def test_proofs_that_prove_nothing(state: Path, proof: list[str]) -> None:
    look(Shown(log_of(5)), KEYS, state)
    shown = Shown(log_of(6))
    shown.proof = proof
    assert "cannot show that its 6 entries begin with the 5" in str(alarmed(shown, state))
    shown.proof = None
    assert look(shown, KEYS, state).checkpoint.size == 6


def test_checkpoints_that_no_trusted_key_signed(state: Path) -> None:
    shown = Shown(log_of(5))
    for note in (shown.log.note(None, signing_key(2)), shown.log.note(None, signing_key(1, "other.example"))):
        shown.note = note
        alarm = alarmed(shown, state)
        assert "not to be trusted" in str(alarm)
        assert alarm.evidence == (note,)
    assert not state.exists()


def test_an_answer_that_is_no_checkpoint(state: Path) -> None:
    shown = Shown(log_of(5))
    look(shown, KEYS, state)
    shown.note = "<html>Sign in</html>"
    with pytest.raises(CannotWitness, match="something that is no checkpoint"):
        look(shown, KEYS, state)
    assert state.read_text(encoding="utf-8") == shown.log.note()


@pytest.mark.parametrize(
    "kept",
    [b"", b"\xff", b"hello", log_of(3).note(None, signing_key(2)).encode(), log_of(3).note()[:-9].encode()],
)
def test_a_kept_file_that_is_no_checkpoint(state: Path, kept: bytes) -> None:
    state.write_bytes(kept)
    with pytest.raises(CannotWitness, match=r"last\.txt is not a checkpoint to hold the log to"):
        look(Shown(log_of(5)), KEYS, state)
    assert state.read_bytes() == kept


def test_a_kept_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CannotWitness, match="cannot be read: Is a directory"):
        look(Shown(log_of(5)), KEYS, tmp_path)


def test_what_cannot_be_kept_leaves_what_was_kept(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look(Shown(log_of(5)), KEYS, state)
    kept = state.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CannotWitness, match="cannot be written: No space left"):
        look(Shown(log_of(6)), KEYS, state)
    assert state.read_bytes() == kept
    assert list(state.parent.iterdir()) == [state]
