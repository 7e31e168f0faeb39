"""Commands, checks and secrets of the compose file, as processes on real servers: a stack but for containers."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.retry import Retry

from app.settings import Settings
from tests.docker.compose import Cluster, Container
from tests.waiting import wait_until
from tests.worker.workshop import Workshop

START_SECONDS = 60.0  # generous: other tests may hold both cores


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def check(container: Container, replacements: dict[str, str]) -> list[str]:
    """The command of a health check, of which some texts are others here."""
    kind, *parts = container.service["healthcheck"]["test"]
    assert kind == "CMD"
    command: list[str] = parts
    for old, new in replacements.items():
        assert any(old in part for part in command)
        command = [part.replace(old, new) for part in command]
    return command


@pytest.mark.usefixtures("migrated")
def test_the_api_serves_and_its_check_tells(containers: dict[str, Container], free_port: int, tmp_path: Path) -> None:
    api = containers["api"]
    look = check(api, {"8000": str(free_port)})
    assert api.run(look).returncode == 1  # nobody listens yet
    own = {
        "MODELMEND_HOST": "127.0.0.1",
        "MODELMEND_PORT": str(free_port),
        "MODELMEND_SIGNING_DIR": str(tmp_path / "signing"),
        "MODELMEND_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
    }
    with api.running(**own) as process:
        wait_until(lambda: process.poll() is not None or api.run(look).returncode == 0, START_SECONDS, api.output())
        assert process.poll() is None, api.output()
        made = api.run(["modelmend", "keys", "create", "--name", "administrator", "--role", "admin"], **own)
        assert made.returncode == 0, made.stderr
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{free_port}", headers=headers) as client:
            assert client.get("/models").json()["models"] == []
            keys = client.post(
                "/api-keys", json={"name": "auditor", "role": "auditor"}, headers={"Idempotency-Key": "auditor"}
            )
            assert keys.status_code == 201, keys.text
        process.terminate()
        assert process.wait(START_SECONDS) == -signal.SIGTERM  # which uvicorn sends itself when all is done
    assert "Traceback" not in api.output()


@pytest.fixture
def workshop(
    migrated: Cluster, containers: dict[str, Container], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workshop]:
    stage = tmp_path / "stage"
    stage.mkdir()
    monkeypatch.setenv("MODELMEND_TEST_STAGE", str(stage))
    mounted = containers["worker"].directory / "secrets"
    settings = Settings(
        data_dir=tmp_path / "data",
        database_url=(mounted / "modelmend_database_url").read_text(),
        redis_url=(mounted / "modelmend_redis_url").read_text(),
        device="cpu",
        sweep_seconds=600.0,  # a ring is heard, not missed and swept up
    )
    workshop = Workshop(settings, stage)
    yield workshop
    workshop.close()


def test_a_worker_hears_a_ring_and_publishes(workshop: Workshop) -> None:
    """With the service's login and with what Redis' ACL leaves: all that RQ needs."""
    workshop.add_model("digits")
    worker = workshop.worker()
    workshop.wait(worker.listens)
    job = workshop.ask_for_edit("digits")
    workshop.wait_for_state(job, "succeeded")
    assert workshop.ledger(job)[-1] == "edit.succeeded"
    for complaint in ("NOPERM", "NoPermission", "redis_not_answering", "doorbell_not_rung", "InsufficientPrivilege"):
        assert complaint not in worker.log()


def test_the_worker_starts_and_its_check_tells(containers: dict[str, Container], tmp_path: Path) -> None:
    worker = containers["worker"]
    pulse = str(tmp_path / "pulse")
    look = check(worker, {worker.service["environment"]["MODELMEND_PULSE_FILE"]: pulse})
    assert worker.run(look).returncode == 1
    with worker.running(MODELMEND_PULSE_FILE=pulse) as process:
        wait_until(lambda: process.poll() is not None or worker.run(look).returncode == 0, START_SECONDS)
        assert process.poll() is None, worker.output()
    assert worker.run(look).returncode == 1


def test_redis_lets_strangers_ask_only_whether_it_lives(redis_socket: Path) -> None:
    with Redis(unix_socket_path=str(redis_socket), decode_responses=True) as stranger:
        assert stranger.ping()
        for command in (["GET", "rq:queues"], ["INFO"], ["CONFIG", "GET", "*"], ["ACL", "LIST"]):
            with pytest.raises(NoPermissionError):
                stranger.execute_command(*command)
    guesser = Redis(
        unix_socket_path=str(redis_socket), username="modelmend", password="guess", retry=Retry(NoBackoff(), 0)
    )
    with guesser, pytest.raises(AuthenticationError):
        guesser.ping()


def test_redis_lets_the_service_touch_rings_alone(containers: dict[str, Container], redis_socket: Path) -> None:
    url = (containers["api"].directory / "secrets" / "modelmend_redis_url").read_text()
    with Redis.from_url(url) as service:
        service.set("rq:test", "1")
        service.delete("rq:test")
        refused: list[list[Any]] = [["SET", "other", "1"], ["FLUSHALL"], ["CONFIG", "SET", "dir", "/"], ["ACL", "LIST"]]
        for command in [*refused, ["MODULE", "LIST"], ["KEYS", "*"]]:
            with pytest.raises(NoPermissionError):
                service.execute_command(*command)
