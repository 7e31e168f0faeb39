"""``python -m app.embedded COMMAND ARGUMENTS...``: run a command against throw-away servers with the newest schema.

The servers are those of ``MODELMEND_DATABASE_URL`` and ``MODELMEND_REDIS_URL`` where these are set. The command finds
the two variables in its environment; its exit status is ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from app.embedded import EmbeddedServersError, ServerURLs, running_servers
from app.migrate import upgrade

COMMAND_NOT_FOUND = 127  # the shell's numbers
KILLED_BY_SIGNAL = 128


def _run(command: list[str], urls: ServerURLs) -> int:
    own_programs = Path(sys.executable).parent  # of the virtual environment, without its being activated
    path = os.pathsep.join((str(own_programs), os.environ.get("PATH", os.defpath)))
    program = shutil.which(command[0], path=path)
    if program is None:
        sys.stderr.write(f"{command[0]}: command not found\n")
        return COMMAND_NOT_FOUND
    environment = os.environ | {
        "PATH": path,
        "MODELMEND_DATABASE_URL": urls.database_url,
        "MODELMEND_REDIS_URL": urls.redis_url,
    }
    # The terminal sends Ctrl-C to the command as well; we outlive it to clean up. Ignoring it would be inherited.
    signal.signal(signal.SIGINT, lambda *_: None)
    with subprocess.Popen([program, *command[1:]], env=environment) as process:  # noqa: S603 - the caller's command
        try:
            status = process.wait()
        except SystemExit:  # we were told to terminate
            process.terminate()
            raise
    return status if status >= 0 else KILLED_BY_SIGNAL - status


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(KILLED_BY_SIGNAL + number)


def main() -> int:
    """Exit status of the command, or 1 with a message when the servers cannot run."""
    parser = argparse.ArgumentParser(prog="python -m app.embedded", description=__doc__)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ARGUMENTS...")
    command: list[str] = parser.parse_args().command
    if not command:
        parser.error("name a command to run")
    signal.signal(signal.SIGTERM, _terminate)
    database_url, redis_url = (os.environ.get(f"MODELMEND_{name}_URL") for name in ("DATABASE", "REDIS"))
    with tempfile.TemporaryDirectory(prefix="modelmend-") as directory:
        try:
            with running_servers(database_url, redis_url, Path(directory), durable=False) as urls:
                upgrade(urls.database_url)
                return _run(command, urls)
        except EmbeddedServersError as error:
            sys.stderr.write(f"{error}\n")
            return 1


if __name__ == "__main__":
    sys.exit(main())
