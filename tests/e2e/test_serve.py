"""``modelmend serve``: one command that starts everything, notices what dies, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from pathlib import Path

import pytest

from app.client import Client, ClientError, ProblemError
from tests.e2e.serving import Served, alive, descendants_of, served
from tests.waiting import wait_until


def test_from_an_empty_directory_to_the_end_and_back(tmp_path: Path) -> None:
    service = Served(tmp_path)
    service.wait_until_ready()
    output = service.output()
    shown = re.findall(r"mm_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", output)
    assert shown == [service.key], "the first key is shown once"
    assert service.record.url in output
    key_file = service.data_dir / "admin.key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(service.data_dir.stat().st_mode) == 0o700
    with service.client() as client:
        assert client.create_api_key("another", "auditor").api_key.role == "auditor"
        with Client(client.url, "mm_wrong") as stranger, pytest.raises(ProblemError, match="API key"):
            list(stranger.models())

    made = service.run("keys", "create", "--name", "beside", "--role", "client")
    with Client(service.record.url, made.stdout.strip()) as client:
        assert list(client.models()) == []
    second = service.run("serve", "--port", "0")
    assert second.returncode == 1
    assert f"is in use by process {service.process.pid}" in second.stderr

    everything = descendants_of(service.process.pid)
    started_at = time.monotonic()
    assert service.stop(signal.SIGINT) == 0
    assert time.monotonic() - started_at < 10.0  # idle: about 1.5 s on an idle machine
    assert len(everything) > 4
    assert not [pid for pid in everything if alive(pid)]
    assert service.output().endswith("Stopped.\n")
    assert "Traceback" not in service.output()
    assert not (service.data_dir / "running.json").exists()

    with served(tmp_path) as again:
        assert not re.search(r"mm_[0-9a-f]{8}_", again.output())
        with again.client() as client:
            assert {key.name for key in client.api_keys()} == {"first administrator", "another", "beside"}
        assert again.stop(signal.SIGTERM) == 0


def test_a_dead_worker_and_a_dead_api_are_told_and_replaced(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        for module, name in (("worker", "worker"), ("app.serving.api", "API")):
            pid = service.child(module)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda name=name: f"The {name} was killed by SIGKILL. Another one" in service.output())  # type: ignore[misc]
            wait_until(lambda module=module, pid=pid: service.child(module) != pid)  # type: ignore[misc]
        with service.client() as client:
            wait_until(lambda: answers(client), 30)


def answers(client: Client) -> bool:
    try:
        return list(client.models()) == []
    except ClientError:
        return False


def test_killed_itself_it_leaves_nothing_and_the_next_start_finds_everything(tmp_path: Path) -> None:
    service = Served(tmp_path)
    service.wait_until_ready()
    everything = descendants_of(service.process.pid)
    service.process.kill()
    service.process.wait()
    wait_until(lambda: not [pid for pid in everything if alive(pid)], 30, "processes are left")
    with served(tmp_path) as again, again.client() as client:
        assert [key.name for key in client.api_keys()] == ["first administrator"]


def test_an_api_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    (tmp_path / ".modelmend").mkdir()
    (tmp_path / ".modelmend" / "artifacts").write_text("in the way")
    service = Served(tmp_path)
    assert service.process.wait(60) == 1
    assert "The API ended with status 1. The end of " in service.output()
    assert not (service.data_dir / "running.json").exists()
