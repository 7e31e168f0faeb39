"""Commands as they are typed: what they print, and how they fail."""

from __future__ import annotations

import csv
import io
import json
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text

from app import cli
from app.access.keys import caller_of
from app.access.rules import Role
from app.database import make_engine, make_sessions
from app.demo.plan import Plan
from app.embedded import ServerURLs
from app.ledger.checkpoints import Checkpoint, sign_checkpoint, verify_checkpoint
from app.ledger.kinds import LedgerKind
from app.ledger.publishing import CheckpointPublisher
from app.ledger.signing import KeyDirectory
from app.settings import Settings
from app.tables import LedgerEntry
from tests.servers import copied_database

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs ``modelmend`` in an empty directory: status, output, messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["modelmend", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output, messages = capsys.readouterr()
        assert "Traceback" not in messages
        assert isinstance(end.value.code, int)
        return end.value.code, output, messages

    return run


@pytest.fixture
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MODELMEND_DATABASE_URL", database_url)
    return database_url


def test_a_key_is_made_shown_once_and_works(command: Command, database: str) -> None:
    status, output, _ = command("keys", "create", "--name", "June", "--role", "client", "--model", "b", "--model", "a")
    assert status == 0
    engine = make_engine(database)
    with make_sessions(engine).begin() as session:
        caller = caller_of(session, output.strip())
        assert caller
        assert (caller.role, caller.model_ids) == (Role.CLIENT, frozenset({"a", "b"}))
        entry = session.query(LedgerEntry).one()
        assert (entry.kind, entry.actor_ref) == (LedgerKind.API_KEY_CREATED, "operator")
    engine.dispose()
    _, listed, _ = command("keys", "list")
    (line,) = listed.splitlines()[1:]
    assert line.split()[:5] == [str(caller.key_id), "client", "June", "a,", "b"]
    assert output.strip()[12:] not in listed


def test_a_key_is_revoked(command: Command, database: str) -> None:
    _, key, _ = command("keys", "create", "--name", "June", "--role", "admin")
    key_id = command("keys", "list")[1].splitlines()[1].split()[0]
    assert command("keys", "revoke", key_id)[0] == 0
    engine = make_engine(database)
    with make_sessions(engine).begin() as session:
        assert caller_of(session, key.strip()) is None
    engine.dispose()
    status, _, messages = command("keys", "revoke", str(uuid4()))
    assert (status, messages) == (1, "Error: There is no such key. `modelmend keys list` shows them all.\n")


def test_the_signing_key_is_rotated(command: Command, database: str) -> None:
    settings = Settings(database_url=database)
    publisher = CheckpointPublisher.of(settings)
    publisher.keys.ensure("ledger.example")
    (old,) = publisher.keys.signing_keys()
    status, output, messages = command("keys", "rotate-signing")
    assert status == 0
    (new,) = publisher.keys.signing_keys()
    assert output == f"{new.verifier}\n"
    assert "signs the history of ledger.example from checkpoint 1 on. Retired, and no longer on this" in messages
    assert f"\n  {old.verifier}\n" in messages
    assert "PRIVATE" not in output + messages
    newest = publisher.archive.newest()
    assert newest
    for key in (old, new):
        assert verify_checkpoint(newest, [key.verifier], origin="ledger.example").size == 1


def test_a_lost_signing_key_is_replaced_and_nobody_is_told_to_take_it_on_trust_of_the_old_one(
    command: Command, database: str
) -> None:
    keys = KeyDirectory(Path(".modelmend/signing"))
    keys.ensure("ledger.example")
    (keys.path / "0001.key").unlink()
    status, output, messages = command("keys", "rotate-signing")
    assert (status, output) == (0, f"{keys.signing_keys()[0].verifier}\n")
    assert "no old key vouches for this one" in messages


def test_signing_keys_that_cannot_be_rotated(command: Command, database: str) -> None:
    status, output, messages = command("keys", "rotate-signing")
    assert (status, output) == (1, "")
    assert messages.startswith("Error: The folder of signing keys, .modelmend/signing, cannot be read: No such file")
    publisher = CheckpointPublisher.of(Settings(database_url=database))
    publisher.keys.ensure("ledger.example")
    forged = Checkpoint("ledger.example", 7, bytes(32))
    publisher.archive.publish(sign_checkpoint(forged, *publisher.keys.signing_keys()))
    status, output, messages = command("keys", "rotate-signing")
    assert (status, output) == (1, "")
    assert messages.startswith("Error: The history cannot be signed, so its key stays. The database has 0 entries")
    assert len(publisher.keys.published()) == 1


def test_migrate_brings_an_empty_database_to_the_newest_schema(
    command: Command, servers: ServerURLs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copied_database(servers.database_url, "template0") as url:
        monkeypatch.setenv("MODELMEND_DATABASE_URL", url)
        for _ in range(2):
            assert command("migrate") == (0, "The database has the newest schema.\n", "")
        engine = create_engine(url)
        with engine.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM api_keys")).scalar_one() == 0
        engine.dispose()


def test_the_demos_data_as_files(command: Command, tmp_path: Path) -> None:
    status, output, _ = command("demo-data", "digits")
    assert status == 0
    files = {Path(line).name: tmp_path / line for line in output.split()}
    assert set(files) == {
        "definition.json",
        "manifest.csv",
        "images.zip",
        "fix-labels.json",
        "held-back.csv",
        "nine.png",
    }
    definition = json.loads(files["definition.json"].read_bytes())
    rows = {row["key"]: row for row in csv.DictReader(io.StringIO(files["manifest.csv"].read_text()))}
    assert {row["class"] for row in rows.values()} == set(definition["classes"])
    with zipfile.ZipFile(files["images.zip"]) as archive:
        assert set(archive.namelist()) == {row["image"] for row in rows.values()}
    labels = json.loads(files["fix-labels.json"].read_bytes())["operations"][0]["labels"]
    train = sum(row["split"] == "train" for row in rows.values())
    assert len(labels) == round(Plan().wrong_labels * train)
    assert all(rows[label["sample"]][label["concept"]] == str(1 - label["value"]) for label in labels)
    held_back = list(csv.DictReader(io.StringIO(files["held-back.csv"].read_text())))
    assert not rows.keys() & {row["key"] for row in held_back}
    assert all((tmp_path / "digits/held-back" / row["image"]).is_file() for row in held_back)


def test_a_port_in_use_is_told_before_anything_starts(command: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, _, messages = command("serve", "--port", port)
    assert status == 1
    assert messages.startswith(f"Error: Port {port} of 127.0.0.1 is in use. Stop the program")
    assert not list(tmp_path.iterdir())


FAILURES = [
    (["serve", "--host", "203.0.113.7"], {}, "Cannot listen on 203.0.113.7"),
    (["serve", "--port", "0", "--data", "a-file/below"], {}, "cannot be made a directory"),
    (["serve"], {"MODELMEND_PORT": "eighty"}, "The configuration is not valid: MODELMEND_PORT: "),
    (["keys", "create", "--name", "", "--role", "admin"], {}, "The key cannot be made: name: "),
    (["keys", "create", "--name", "a", "--role", "admin", "--model", "A B"], {}, "The key cannot be made: models: "),
    (
        ["keys", "list"],
        {"MODELMEND_DATABASE_URL": "postgresql+psycopg://a:secret@127.0.0.1:1/b"},
        "The database does not answer",
    ),
    (["demo", "--report", "nowhere/report.json"], {}, "There is no directory nowhere"),
    (["datasets", "import", *("--definition", "a-file", "--manifest", "a-file", "--images", ".")], {}, "is not JSON"),
    (["datasets", "import", *("--definition", "absent", "--manifest", "b", "--images", ".")], {}, "no file absent"),
    (
        ["datasets", "import", *("--definition", "{}", "--manifest", "a-file", "--images", ".")],
        {},
        "No service runs on",
    ),
]


@pytest.mark.parametrize(("arguments", "environment", "message"), FAILURES, ids=[" ".join(a) for a, _, _ in FAILURES])
def test_what_cannot_be_done_is_said_in_a_sentence(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    message: str,
) -> None:
    (tmp_path / "a-file").write_text("no JSON")
    (tmp_path / "{}").write_text("{}")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status, _, messages = command(*arguments)
    assert status == 1
    assert messages.startswith("Error: ")
    assert message in messages
    assert len(messages.splitlines()) == 1
    assert "secret" not in messages


def test_wrong_options_are_explained(command: Command) -> None:
    status, _, messages = command("keys", "create", "--name", "a", "--role", "king")
    assert status == 2
    assert "--role" in messages
