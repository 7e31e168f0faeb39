"""``modelmend ledger verify`` as it is typed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app import cli
from tests.app.ledger.logs import Log, as_lines, signing_key, typical_log

Command = Callable[..., tuple[int, str, str]]

LOG = typical_log()
KEY = str(signing_key().verifier)
ROOT = LOG.note().splitlines()[2]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs ``modelmend ledger`` in an empty directory: status, output, messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["modelmend", "ledger", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output, messages = capsys.readouterr()
        assert "Traceback" not in messages
        assert isinstance(end.value.code, int)
        return end.value.code, output, messages

    return run


def export_of(log: Log, name: str = "export.jsonl") -> str:
    Path(name).write_bytes(b"".join(as_lines(log.export())))
    return name


def test_what_is_as_it_was_signed(command: Command) -> None:
    Path("kept").mkdir()
    Path("kept/unfinished").mkdir()
    Path("kept/000").mkdir()
    Path("kept/000/000000000008.txt").write_text(LOG.note(8), encoding="utf-8")
    Path("kept/unfinished/1").write_text("half", encoding="utf-8")
    Path("kept/.lock").touch()
    Path("receipt.json").write_text(json.dumps(LOG.receipt(3), indent=2), encoding="utf-8")
    arguments = ["--key", KEY, "--checkpoint", "kept", "--checkpoint", "receipt.json"]
    status, output, messages = command("verify", export_of(LOG), *arguments)
    assert (status, messages) == (0, "")
    assert output.splitlines() == [
        "This history is as log.example signed it.",
        "  entries              21",
        "  checkpoints          7",
        "  outside checkpoints  2 of 2",
        "  erased payloads      3",
        "  size of the history  21",
        f"  root                 {ROOT}",
    ]


def test_what_has_not_been_shown_is_said(command: Command) -> None:
    assert "only a --checkpoint kept elsewhere tells" in command("verify", export_of(LOG), "--key", KEY)[1]
    Path("model.jsonl").write_bytes(b"".join(as_lines(LOG.model_export())))
    Path("old.txt").write_text(LOG.note(8), encoding="utf-8")
    _, output, _ = command("verify", "model.jsonl", "--key", KEY, "--checkpoint", "old.txt")
    assert output.startswith("This history of a model is as log.example signed it.\n")
    assert "nothing is left out of a history of a model" in output
    assert "outside checkpoints  0 of 1" in output
    assert "can be held to checkpoints of other sizes" in output


def test_standard_input_and_keys_in_a_file(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("keys.txt").write_text(f"{signing_key(2).verifier}\n\n{KEY}\n", encoding="utf-8")
    source = io.TextIOWrapper(io.BytesIO(b"".join(as_lines(LOG.export()))))
    monkeypatch.setattr("sys.stdin", source)
    status, output, _ = command("verify", "-", "--key", "keys.txt")
    assert status == 0
    assert "This history is as log.example signed it." in output


@pytest.mark.parametrize(("first", "last", "where"), [(5, 5, "entry 5"), (5, 6, "entries 5 to 6")])
def test_tampering_has_a_status_of_its_own(command: Command, first: int, last: int, where: str) -> None:
    log = LOG.copy()
    log.forget((first, last))
    status, output, messages = command("verify", export_of(log), "--key", KEY)
    assert (status, output) == (3, "")
    assert messages.startswith("Not as signed: No entry records an erasure of the missing payload of ")
    assert messages.endswith(f"It is in {where}.\n")


def test_an_outside_checkpoint_of_another_history(command: Command) -> None:
    log = LOG.copy()
    log.entries[20]["kind"] = "edit.failed"
    log.rehash()
    Path("kept.txt").write_text(LOG.note(), encoding="utf-8")
    assert command("verify", export_of(log), "--key", KEY)[0] == 0
    status, _, messages = command("verify", "export.jsonl", "--key", KEY, "--checkpoint", "kept.txt")
    assert status == 3
    assert "kept.txt holds another history of the first 21 entries" in messages


def test_a_receipt_that_is_not_to_be_trusted_concerns_no_entry(command: Command) -> None:
    Path("receipt.json").write_text(json.dumps(LOG.receipt(3)), encoding="utf-8")
    status, _, messages = command("verify", "receipt.json", "--key", str(signing_key(2).verifier))
    assert status == 3
    assert messages == ("Not as signed: The checkpoint is not to be trusted: no known key has signed the checkpoint.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent", "--key", KEY], "There is no file absent."),
        (["export.jsonl", "--key", "absent"], "absent is neither a file nor a key"),
        (["export.jsonl", "--key", "export.jsonl"], "export.jsonl holds a line that is no key"),
        (["export.jsonl", "--key", "empty"], "these are of: none"),
        (
            ["export.jsonl", "--key", KEY, "--key", str(signing_key(1, "other.example").verifier)],
            "these are of: log.example, other.example",
        ),
        (["empty", "--key", KEY], "empty is no export or receipt that can be verified"),
        (["export.jsonl", "--key", KEY, "--checkpoint", "absent"], "There is no file absent."),
        (["export.jsonl", "--key", KEY, "--checkpoint", "empty"], "Nothing can be held to empty."),
        (["export.jsonl", "--key", KEY, "--checkpoint", "folder"], "There is no checkpoint in folder."),
    ],
)
def test_what_cannot_be_done(command: Command, arguments: list[str], message: str) -> None:
    export_of(LOG)
    Path("empty").touch()
    Path("folder").mkdir()
    status, output, messages = command("verify", *arguments)
    assert (status, output) == (1, "")
    assert messages.startswith("Error: ")
    assert message in messages


def test_wrong_use(command: Command) -> None:
    assert command("verify", "export.jsonl")[0] == 2
    assert command("verify", "--key", KEY)[0] == 2


def test_the_progress_of_a_large_file_is_shown_on_a_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ledger.commands._PROGRESS_FROM", 100)
    monkeypatch.setenv("FORCE_COLOR", "1")
    status, _, messages = command("verify", export_of(LOG), "--key", KEY)
    assert status == 0
    assert "Verifying" in messages
