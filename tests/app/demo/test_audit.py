"""The demo's audit: a history that is as signed, a copy that is not, and what the demo says when it must fail."""

from __future__ import annotations

import io
import json
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from app.client import Client
from app.demo import steps
from app.demo.audit import LedgerOutcome, Tampering, named_entry, tamper, verify_file
from app.demo.display import Display
from app.demo.plan import Plan
from app.ledger.findings import TamperingFound
from tests.app.ledger.logs import Log, as_lines, signing_key

KEYS = [signing_key().verifier]


def a_log() -> Log:
    """Five versions in 21 entries, checkpoints between."""
    log = Log()
    for seq in range(1, 22):
        log.append(payload={"f1": 0.25, "name": "“ö”"}, result_version=seq // 4 if seq % 4 == 0 else None)
        if seq % 6 == 0:
            log.publish()
    return log


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return written(tmp_path / "export.jsonl", a_log())


def written(path: Path, log: Log) -> Path:
    path.write_bytes(b"".join(as_lines(log.export())))
    return path


def test_one_value_of_one_entry_in_the_middle_is_changed_and_named(export: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    assert verify_file(export, KEYS).entries == 21
    assert tamper(export, copy) == Tampering(seq=12, true_version=3, told_version=4)
    pairs = zip(export.read_bytes().splitlines(), copy.read_bytes().splitlines(), strict=True)
    ((true, told),) = [(json.loads(one), json.loads(other)) for one, other in pairs if one != other]
    assert [value["entry"].pop("result_version") for value in (true, told)] == [3, 4]
    assert true == told
    with pytest.raises(TamperingFound) as found:
        verify_file(copy, KEYS)
    assert named_entry(found.value) == 12


def test_a_history_without_versions_cannot_be_lied_about_like_that(tmp_path: Path) -> None:
    log = Log()
    log.append()
    with pytest.raises(ValueError, match="no entry"):
        tamper(written(tmp_path / "export.jsonl", log), tmp_path / "copy.jsonl")


@pytest.mark.parametrize(("first", "last", "named"), [(7, 7, 7), (7, 9, None), (None, None, None)])
def test_a_range_names_no_entry(first: int | None, last: int | None, named: int | None) -> None:
    assert named_entry(TamperingFound(first, last, "")) == named


@pytest.mark.parametrize(
    ("outcome", "proved"),
    [
        (LedgerOutcome(21, verified=True, tampered_at=12, tamper_detected_at=12), True),
        (LedgerOutcome(21, verified=True, tampered_at=12, tamper_detected_at=13), False),
        (LedgerOutcome(21, verified=True, tampered_at=12), False),
        (LedgerOutcome(21, verified=True), False),
        (LedgerOutcome(0, verified=False, tampered_at=12, tamper_detected_at=12), False),
    ],
)
def test_it_is_proved_when_the_very_entry_was_named(outcome: LedgerOutcome, proved: bool) -> None:
    assert outcome.proved is proved


def audited(directory: Path, log: Log, key: int = 1) -> tuple[LedgerOutcome, list[str]]:
    """What the demo's step makes of a service that exports this log, and what it shows."""
    body = b"".join(as_lines(log.export()))
    service = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    console = Console(file=io.StringIO(), width=100)
    with Client("http://log.example", "key", transport=service) as client, Display(console) as display:
        demo = steps.prepare(client, display, Plan())
        outcome = steps.verify_history(demo, directory, [signing_key(key).verifier])
    assert isinstance(console.file, io.StringIO)
    return outcome, console.file.getvalue().splitlines()


def test_the_step_shows_both_verdicts(tmp_path: Path) -> None:
    outcome, shown = audited(tmp_path, a_log())
    assert outcome == LedgerOutcome(21, verified=True, tampered_at=12, tamper_detected_at=12)
    whole, copy = shown
    assert whole.startswith("✓ Verify the exported history offline (")
    assert whole.endswith("): 21 entries, as signed")
    assert copy.startswith("✓ Tamper with a copy, verify it again (")
    assert copy.endswith("): entry 12 named (version 3 → 4)")
    assert {file.name for file in tmp_path.iterdir()} == {"history.jsonl", "tampered.jsonl"}


@pytest.mark.parametrize("lie", ["entry", "key"])
def test_a_history_that_is_not_as_signed_fails_the_step(lie: str, tmp_path: Path) -> None:
    log = a_log()
    if lie == "entry":
        log.entries[4]["actor_ref"] = "somebody else"
    outcome, shown = audited(tmp_path, log, key=2 if lie == "key" else 1)
    assert outcome == LedgerOutcome(entries=0, verified=False)
    (line,) = shown
    assert line.startswith("✗ Verify the exported history offline (")
    assert ("Entry 5 is not what" if lie == "entry" else "not to be trusted") in line


def test_tampering_that_is_found_elsewhere_fails_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def misplaced(export: Path, copy: Path) -> Tampering:
        done = tamper(export, copy)
        return Tampering(done.seq + 1, done.true_version, done.told_version)

    monkeypatch.setattr(steps, "tamper", misplaced)
    outcome, shown = audited(tmp_path, a_log())
    assert (outcome.tamper_detected_at, outcome.proved) == (12, False)
    assert shown[1].startswith("✗ Tamper with a copy")
    assert "entry 13 not named (version 3 → 4): Entry 12 is not what" in shown[1]
