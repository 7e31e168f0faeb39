"""An auditor and a witness at work: the client and the commands against the service on a socket."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import uvicorn

from app import cli
from app.access.rules import Role
from app.client import Client, ProblemError, ServiceUnreachable, drop_concepts
from app.embedded import ServerURLs
from app.ledger.checkpoints import parse_checkpoint
from app.ledger.exports import lines_of
from app.ledger.verification import verify
from tests.app.ledger.logs import signing_key
from tests.app.ledger.stored import SIZE, History
from tests.app.service import running_service
from tests.servers import copied_database
from tests.waiting import wait_until

COMMAND = Path(sys.executable).with_name("modelmend")
Command = Callable[..., tuple[int, str, str]]


@contextmanager
def listening(history: History) -> Iterator[str]:
    """The service on a socket; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(history.service.client.app, log_config=None, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def shared(
    servers: ServerURLs, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[History, str]]:
    with (
        copied_database(servers.database_url, template_database) as database,
        running_service(database, tmp_path_factory.mktemp("auditing"), checkpoint_seconds=86_400) as service,
    ):
        history = History(service)
        with listening(history) as url:
            yield history, url


@pytest.fixture
def history(shared: tuple[History, str]) -> Iterator[History]:
    yield shared[0]
    shared[0].restore()


@pytest.fixture
def url(shared: tuple[History, str]) -> str:
    return shared[1]


@pytest.fixture
def client(history: History, url: str) -> Iterator[Client]:
    with Client(url, history.service.key) as client:
        yield client


@pytest.fixture
def command(
    history: History, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Runs ``modelmend ledger`` in an empty directory, which trusts the service's key: status, output, messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("MODELMEND_URL", url)
    monkeypatch.setenv("MODELMEND_KEY", history.service.key)
    Path("keys.txt").write_text("".join(f"{key}\n" for key in history.keys), encoding="utf-8")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["modelmend", "ledger", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output, messages = capsys.readouterr()
        assert isinstance(end.value.code, int)
        ours = [
            line for line in messages.splitlines(keepends=True) if not line.startswith("{")
        ]  # else the service's log
        return end.value.code, output, "".join(ours)

    return run


def test_exports_and_receipts_are_verified_as_they_come(client: Client, command: Command, history: History) -> None:
    client.ledger_export(Path("history.jsonl"))
    client.model_ledger_export("digits-model", Path("model.jsonl"))
    for name in ("history.jsonl", "model.jsonl"):
        status, output, _ = command("verify", name, "--key", "keys.txt")
        assert status == 0
        assert f"size of the history  {SIZE}" in output
    archive = history.service.services.checkpoints.archive.path
    status, output, _ = command("verify", "history.jsonl", "--key", "keys.txt", "--checkpoint", str(archive))
    assert status == 0
    assert "outside checkpoints  3 of 3" in output
    assert sorted(path.name for path in Path().iterdir()) == ["history.jsonl", "keys.txt", "model.jsonl"]


def test_a_receipt_of_an_edit(client: Client, history: History) -> None:
    concept = client.version("digits-model", 1).concepts[0]
    edit = client.edit("digits-model", [drop_concepts([concept])])
    receipt = client.receipt("digits-model", str(edit.id))
    verified = verify(lines_of(io.BytesIO(receipt)), history.keys, [history.kept(SIZE)])
    assert (verified.document, verified.entries, verified.size) == ("receipt", 1, SIZE + 1)
    assert (verified.checkpoints, verified.outside_checkpoints) == (1, 0)


def test_the_history_filtered(client: Client) -> None:
    everything = list(client.ledger())
    assert [entry.seq for entry in everything] == list(range(SIZE, 0, -1))
    of_model = list(client.ledger("digits-model"))
    assert {entry.model_id for entry in of_model} == {"digits-model"}
    assert [entry.seq for entry in client.ledger("digits-model", version=7, kind="alias.moved")] == [7, 6]
    assert list(client.ledger("digits-model", dataset_id="digits")) == [e for e in of_model if e.dataset_id == "digits"]
    eighth = next(entry for entry in everything if entry.seq == 8)
    assert [entry.seq for entry in client.ledger(actor="operator", since=eighth.at)] == list(range(SIZE, 7, -1))
    earlier = client.ledger(until=eighth.at, since=eighth.at - timedelta(days=1))
    assert [entry.seq for entry in earlier] == list(range(7, 0, -1))


def test_keys_checkpoints_and_proofs(client: Client, history: History) -> None:
    keys = client.ledger_keys()
    assert [key.key for key in keys.keys] == [str(key) for key in history.keys]
    assert keys.origin == history.keys[0].name
    assert client.checkpoint() == history.notes[SIZE]
    assert len(client.consistency_proof(5, SIZE)) > 0
    assert client.consistency_proof(SIZE, SIZE) == []


def test_an_export_that_is_refused_leaves_the_file_that_was_there(history: History, url: str, tmp_path: Path) -> None:
    target = tmp_path / "history.jsonl"
    target.write_text("kept", encoding="utf-8")
    key = history.service.key_of(Role.AUDITOR, models=["digits-model"])
    with Client(url, key) as limited, pytest.raises(ProblemError) as refused:
        limited.ledger_export(target)
    assert refused.value.code == "forbidden"
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["kept"]


def test_an_export_that_breaks_off_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.client.connection.FIRST_PAUSE", 0.0)
    attempts = []

    class Cut(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"half"
            raise httpx.ReadError("cut")

    def answer(request: httpx.Request) -> httpx.Response:
        attempts.append(request.url.path)
        return httpx.Response(200, stream=Cut())

    with (
        Client("http://service", "key", transport=httpx.MockTransport(answer)) as client,
        pytest.raises(ServiceUnreachable),
    ):
        client.ledger_export(tmp_path / "history.jsonl")
    assert attempts == ["/ledger/export"] * 5
    assert list(tmp_path.iterdir()) == []


def grow(history: History) -> None:
    """Two more entries, under a checkpoint."""
    with history.superuser() as connection:
        size = connection.exec_driver_sql("SELECT max(seq) FROM ledger_entries").scalar_one()
    for seq in (size + 1, size + 2):
        history.append(seq)
    history.publish()


WITNESS = ("witness", "--key", "keys.txt", "--state", "last.txt")


def test_a_witness_follows_the_service(command: Command, history: History) -> None:
    assert command(*WITNESS) == (0, f"{SIZE} entries; the first checkpoint seen, kept.\n", "")
    assert Path("last.txt").read_text(encoding="utf-8") == history.notes[SIZE]
    assert command(*WITNESS) == (0, f"{SIZE} entries, as before.\n", "")
    grow(history)
    assert command(*WITNESS) == (0, f"{SIZE + 2} entries, which begin with the {SIZE} seen before.\n", "")
    assert Path("last.txt").read_text(encoding="utf-8") == history.service.get("/ledger/checkpoint").text


def test_a_witness_notices_a_log_put_back(command: Command, history: History) -> None:
    command(*WITNESS)
    history.cut(9)
    history.unpublish(SIZE)
    now = history.publish()
    status, output, messages = command(*WITNESS)
    assert (status, output) == (3, "")
    assert messages.startswith(f"Not as signed: The log went back: it has signed {SIZE} entries and now shows 9.\n")
    assert history.notes[SIZE] in messages
    assert now in messages
    assert Path("last.txt").read_text(encoding="utf-8") == history.notes[SIZE]


@pytest.mark.parametrize(
    ("growth", "sentence"),
    [
        (0, f"The log has signed two different histories of {SIZE} entries."),
        (2, f"The log cannot show that its {SIZE + 2} entries begin with the {SIZE} it signed before"),
    ],
)
def test_a_witness_notices_a_rewritten_log(command: Command, history: History, growth: int, sentence: str) -> None:
    command(*WITNESS)
    history.run("UPDATE ledger_entries SET actor_ref = 'worker' WHERE seq = 6")
    history.rehash()
    for size in (8, SIZE):
        history.unpublish(size)
    if growth:
        grow(history)
    else:
        history.publish()
    status, _, messages = command(*WITNESS)
    assert status == 3
    assert sentence in messages
    assert Path("last.txt").read_text(encoding="utf-8") == history.notes[SIZE]


def test_a_witness_with_another_key(command: Command, history: History) -> None:
    other = str(signing_key(2, history.keys[0].name).verifier)
    status, _, messages = command("witness", "--key", other, "--state", "last.txt")
    assert status == 3
    assert "no known key has signed the checkpoint" in messages
    assert not Path("last.txt").exists()


def test_what_a_witness_cannot_do(command: Command, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.client.connection.ATTEMPTS", 1)
    assert command(*WITNESS, "--url", "http://127.0.0.1:1")[0] == 1
    assert command(*WITNESS, "--api-key", "nothing")[0] == 1
    status, _, messages = command("witness", "--key", "keys.txt", "--state", "absent/last.txt")
    assert status == 1
    assert "There is no directory" in messages
    Path("last.txt").write_text("hello", encoding="utf-8")
    status, _, messages = command(*WITNESS)
    assert status == 1
    assert "last.txt is not a checkpoint to hold the log to" in messages
    assert command(*WITNESS, "--every", "0")[0] == 2


@contextmanager
def standing_witness(directory: Path, history: History, url: str) -> Iterator[subprocess.Popen[str]]:
    """``modelmend ledger witness --every 0.1`` as a process in ``directory``."""
    (directory / "keys.txt").write_text("".join(f"{key}\n" for key in history.keys), encoding="utf-8")
    environment = {**os.environ, "MODELMEND_URL": url, "MODELMEND_KEY": history.service.key}
    process = subprocess.Popen(
        [COMMAND, "ledger", *WITNESS, "--every", "0.1"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def size_in(state: Path) -> int:
    return parse_checkpoint(state.read_text(encoding="utf-8")).checkpoint.size if state.exists() else 0


def test_a_standing_witness_goes_on_over_failures_until_it_is_stopped(
    history: History, url: str, tmp_path: Path
) -> None:
    state = tmp_path / "last.txt"
    with standing_witness(tmp_path, history, url) as process:
        wait_until(lambda: size_in(state) == SIZE, 60)
        good = state.read_bytes()
        state.write_text("damaged", encoding="utf-8")
        assert process.stderr
        assert "Not checked" in process.stderr.readline()
        state.write_bytes(good)
        grow(history)
        wait_until(lambda: size_in(state) == SIZE + 2, 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == cli.INTERRUPTED


def test_a_standing_witness_ends_with_an_alarm(history: History, url: str, tmp_path: Path) -> None:
    state = tmp_path / "last.txt"
    with standing_witness(tmp_path, history, url) as process:
        wait_until(lambda: size_in(state) == SIZE, 60)
        history.cut(9)
        history.unpublish(SIZE)
        _, messages = process.communicate(timeout=60)
        assert process.returncode == 3
        assert "The log went back" in messages
