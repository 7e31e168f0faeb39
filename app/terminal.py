"""What the commands share: the option ``--data``, settings out of options, the running service, and clear failures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from app.serving import RunningRecord
from app.serving.first_key import read_admin_key
from app.settings import Settings

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Directory of all data; default MODELMEND_DATA_DIR, then .modelmend."),
]


class CommandError(Exception):
    """A command cannot do what it was asked; the message says what to do next."""


def settings_of(**given: Any) -> Settings:
    """Settings of the environment, overruled by options that were given; raises CommandError."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        places = "; ".join(f"MODELMEND_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors())
        raise CommandError(f"The configuration is not valid: {places}.") from error


def existing_file(path: Path) -> Path:
    """``path``; raises CommandError when it is no file."""
    if not path.is_file():
        raise CommandError(f"There is no file {path}.")
    return path


def running_url(settings: Settings) -> str:
    """Where the service on this data directory listens; raises CommandError."""
    record = RunningRecord.read(settings.data_dir)
    if record is None:
        raise CommandError(f"No service runs on {settings.data_dir}. Start `modelmend serve`, or name one with --url.")
    return record.url


def admin_key(settings: Settings) -> str:
    """The first key of this data directory; raises CommandError."""
    text = read_admin_key(settings.data_dir)
    if text is None:
        raise CommandError(f"There is no key in {settings.data_dir}. Name one with --key, or set MODELMEND_KEY.")
    return text
