"""``python -m tests.worker.start EXECUTOR``: a real worker, as configured by the environment, with another executor."""

from __future__ import annotations

import sys

from app.settings import Settings
from worker.logs import set_up_logging
from worker.main import run

if __name__ == "__main__":  # a package's, as ``python -m worker`` is: spawned children do not import it again
    set_up_logging()
    run(Settings(), executor=sys.argv[1])
    sys.stderr.write(f"torch in the parent: {'torch' in sys.modules}\n")
