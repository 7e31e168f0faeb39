"""The compute process: the only one that imports torch. It knows no database and answers one task at a time.

It stays alive between tasks, so that torch, the device's context and whatever ``execute`` keeps stay warm.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import structlog

from app.artifacts import ArtifactStore, open_store
from app.settings import Settings
from worker.logs import log_unexpected, set_up_logging
from worker.tasks import Result, Task, TaskFailure

Progress = Callable[[str, int, int], None]
Execute = Callable[[Task, ArtifactStore, str, Progress], Result]

PR_SET_PDEATHSIG = 1


def serve(connection: Connection, parent: int, settings_json: str, executor: str) -> None:
    """Entry point of the process: answer tasks until ``connection`` closes.

    Messages are JSON objects with one key. In: ``{"task": Task, "job": id}``. Out: ``{"ready": pid}`` once imports are
    done, then per task any number of ``{"progress": [stage, done, total]}`` and one of ``{"result": Result}``,
    ``{"failure": {"code", "detail"}}`` or ``{"crash": exception type}``.

    Args:
        parent: id of the process that started this one; when it ends, so does this.
        executor: dotted name of a function like ``worker.compute.execute``. Its module may hold
            ``prepare(device)``, called once before the first task.
    """
    end_with(parent)
    # A terminal or a service manager signals every process; the parent decides whether the job may finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_up_logging()
    settings = Settings.model_validate_json(settings_json)
    device = choose_device(settings.device)
    execute = load(executor, device)
    store = open_store(settings)
    _send(connection, _encode({"ready": os.getpid()}))
    while True:
        try:
            order = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        with structlog.contextvars.bound_contextvars(job=order["job"]):
            _send(connection, _answer(execute, Task.from_json(order["task"]), store, device, connection))


def _answer(execute: Execute, task: Task, store: ArtifactStore, device: str, connection: Connection) -> bytes:
    def progress(stage: str, done: int, total: int) -> None:
        _send(connection, _encode({"progress": [stage, done, total]}))

    try:
        return _encode({"result": execute(task, store, device, progress).to_json()})
    except TaskFailure as failure:
        return _encode({"failure": {"code": failure.code, "detail": failure.detail}})
    except Exception as error:
        log_unexpected("computation_crashed", error, kind=task.kind)
        return _encode({"crash": type(error).__name__})


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False).encode()  # Postgres stores no NaN in JSON either


def _send(connection: Connection, message: bytes) -> None:
    try:
        connection.send_bytes(message)
    except BrokenPipeError:  # nobody is left to compute for
        os._exit(0)


def end_with(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux; elsewhere the pipe tells)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os._exit(0)


def choose_device(setting: str) -> str:
    """``cuda`` where torch finds one and nothing else was asked for."""
    if setting != "auto":
        return setting
    import torch  # noqa: PLC0415 - only this process may, and only when asked

    return "cuda" if torch.cuda.is_available() else "cpu"


def load(executor: str, device: str) -> Execute:
    """The function that ``executor`` names, its module prepared for ``device``."""
    module_name, _, function_name = executor.rpartition(".")
    module = importlib.import_module(module_name)
    if (prepare := getattr(module, "prepare", None)) is not None:
        prepare(device)
    function: Execute = getattr(module, function_name)
    return function
