"""Scripts as a page prints them, run in one shell against ``modelmend serve``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.serving import Served

ADDRESS = "http://127.0.0.1:8000"
_PAUSE = "=== script"
_SECONDS = 300.0


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Language and text of each fenced block in one of ``languages``, in order."""
    return re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def here(script: str, service: Served) -> str:
    """The script, but for the port, which may be taken on the machine that runs tests."""
    return script.replace(ADDRESS, service.record.url)


def run_scripts(scripts: Sequence[str], service: Served, *, options: str) -> list[str]:
    """What each script printed, errors included, in the service's directory, where ``.venv`` is this environment.

    Args:
        options: of bash, such as ``-eu`` to end with an AssertionError at the first command that fails.
    """
    environment = service.directory / ".venv"
    if not environment.is_symlink():
        environment.symlink_to(Path(sys.prefix))
    pause = f"\necho '{_PAUSE}'\n"
    ran = subprocess.run(
        ["bash", options, "-c", f"exec 2>&1\n{here(pause.join(scripts), service)}{pause}"],
        cwd=service.directory,
        env=service.environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    printed = ran.stdout.split(f"{_PAUSE}\n")
    assert len(printed) == len(scripts) + 1, f"Not every script has ended.\n{ran.stdout}"
    return printed[:-1]
