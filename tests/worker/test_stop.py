from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from worker.stop import Stop


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_first_request_gives_time_and_a_second_takes_it() -> None:
    stop = Stop(600.0)
    assert (stop.requested, stop.now) == (False, False)
    stop.request()
    assert (stop.requested, stop.now) == (True, False)
    stop.request()
    assert (stop.requested, stop.now) == (True, True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a third ends a process that hangs"


def test_the_time_runs_out() -> None:
    stop = Stop(0.05)
    stop.request()
    wait_until(lambda: stop.now, 5)
