"""``python -m worker``: run a worker until it is told to stop."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from app.settings import Settings
from worker.jobs import ComputeUnavailable
from worker.logs import set_up_logging
from worker.main import ServersNotConfigured, run


def main() -> int:
    """Exit status: 0 after a stop, 1 with a message when no work is possible here."""
    # The compute process inherits it. Threads that spin while they wait for each other cost a factor of ten in time
    # as soon as anything else wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    set_up_logging()
    if find_spec("torch") is None:
        sys.stderr.write("A worker computes with torch. Install it with: pip install 'modelmend[worker]'\n")
        return 1
    try:
        run(Settings())
    except (ServersNotConfigured, ComputeUnavailable) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
