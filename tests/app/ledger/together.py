"""Processes that do something at the same moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def run_together(imports: str, statement: str, arguments: Sequence[Sequence[str]]) -> list[str]:
    """One process for each list of arguments; all have imported before any runs the statement. Returns their output."""
    source = f"import sys; {imports}; print(flush=True); sys.stdin.readline(); {statement}"
    processes = [
        subprocess.Popen([sys.executable, "-c", source, *own], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for own in arguments
    ]
    try:
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes)
        return outputs
    finally:
        for process in processes:
            process.kill()
            process.communicate()
