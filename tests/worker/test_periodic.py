from __future__ import annotations

from sqlalchemy.exc import OperationalError

from tests.waiting import wait_until
from worker.periodic import Periodic


def test_it_calls_again_after_what_the_call_asked_for() -> None:
    calls: list[int] = []

    def action() -> float:
        calls.append(1)
        return 0.001 if len(calls) < 3 else 600.0

    periodic = Periodic("counting", action)
    periodic.start()
    wait_until(lambda: len(calls) == 3)
    periodic.stop()
    assert len(calls) == 3


def test_a_database_that_fails_is_asked_again() -> None:
    calls: list[int] = []

    def action() -> float:
        calls.append(1)
        if len(calls) == 1:
            raise OperationalError("SELECT", None, Exception("gone"))
        return 600.0

    periodic = Periodic("failing", action)
    periodic.start()
    wait_until(lambda: len(calls) == 2)
    periodic.stop()


def test_nothing_is_called_before_its_time_or_after_the_stop() -> None:
    calls: list[int] = []

    def action() -> float:
        calls.append(1)
        return 0.0

    periodic = Periodic("late", action, first_after=600.0)
    periodic.start()
    periodic.stop()
    assert calls == []
