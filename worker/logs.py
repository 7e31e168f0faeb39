"""Log lines of both processes of a worker: JSON, and no values out of the data they work on."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import structlog

from app.kit.logs import configure_logging

FRAMES = 12  # innermost ones

log = structlog.get_logger(__name__)


def set_up_logging() -> None:
    """Our own lines and those of libraries as one JSON object each, on standard error."""
    configure_logging()
    logging.basicConfig(handlers=[ForwardToStructlog()], level=logging.WARNING, force=True)


class ForwardToStructlog(logging.Handler):
    """Lines of libraries, in the form of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, "library", logger=record.name, message=record.getMessage())


def log_unexpected(event: str, error: BaseException, **fields: Any) -> None:
    """A line about an exception that nobody foresaw: its type and where it was raised.

    Without its message and the values of variables, which hold labels and keys of samples.
    """
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    log.error(event, error=type(error).__qualname__, at=places, **fields)
