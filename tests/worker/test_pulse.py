"""A worker touches its file while it waits and while it computes, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.worker.computations import calls
from tests.worker.workshop import PROJECT, Workshop
from worker.pulse import MAX_AGE, Pulse


def look(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "worker.pulse", str(file)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=30, check=False)


def age(file: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(file, (then, then))


def beaten(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime < MAX_AGE
    except FileNotFoundError:
        return False


def test_a_file_touched_lately_is_a_worker_that_lives(tmp_path: Path) -> None:
    file = tmp_path / "pulse"
    assert "No worker" in look(file).stderr
    Pulse(file).beat()
    assert look(file).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    age(file, MAX_AGE + 5)
    found = look(file)
    assert (found.returncode, "65 s ago" in found.stderr) == (1, True)


def test_beats_are_cheap_and_end(tmp_path: Path) -> None:
    file = tmp_path / "pulse"
    pulse = Pulse(file)
    pulse.beat()
    file.unlink()
    pulse.beat()  # too soon after the other
    assert not file.exists()
    Pulse(file).beat()
    pulse.end()
    assert not file.exists()
    pulse.end()


def test_a_place_that_cannot_be_written_stops_no_work(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "nothing" / "pulse")
    pulse.beat()
    pulse.end()
    Pulse(None).beat()


def test_looking_imports_little() -> None:
    """A check every few seconds must not cost what importing the service costs."""
    code = "import sys, worker.pulse; print({'pydantic', 'sqlalchemy', 'redis', 'torch'} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=30, check=True
    )
    assert found.stdout.strip() == "set()"


def test_a_worker_beats_while_it_waits_and_while_it_computes(workshop: Workshop, tmp_path: Path) -> None:
    file = tmp_path / "pulse"
    workshop.add_model("digits")
    worker = workshop.worker(pulse_file=file)
    workshop.wait(lambda: beaten(file), message="no beat while waiting for a ring")
    with workshop.held():
        workshop.ask_for_edit("digits")
        workshop.wait(lambda: len(calls()) == 1)
        age(file, MAX_AGE * 2)
        workshop.wait(lambda: beaten(file), message="no beat while computing")
    worker.signal(signal.SIGTERM)
    assert worker.exit_status() == 0
    assert not file.exists()


def test_a_worker_that_hears_no_rings_does_not_beat(workshop: Workshop, tmp_path: Path) -> None:
    file = tmp_path / "pulse"
    worker = workshop.worker(pulse_file=file, redis_url="unix:///nowhere/redis.sock")
    workshop.wait(lambda: worker.log().count("redis_not_answering") + worker.log().count("lost_redis") >= 2)
    assert not file.exists()
