"""``python -m app.serving.api``: the API alone, on the host and port of the settings, over servers that run already.

``python -m app.serving.api DESCRIPTOR`` serves a listening socket that the parent opened and keeps open.
"""

from __future__ import annotations

import logging
import socket
import sys

import uvicorn

from app.main import create_app
from app.settings import Settings

GRACE_SECONDS = 2  # for requests that run when the end is asked for


def main() -> None:
    """Serve until SIGTERM. Settings come from the environment."""
    logging.basicConfig(level=logging.WARNING)
    settings = Settings()
    listeners = [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]]
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # its paths hold the keys of samples
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=listeners or None)


if __name__ == "__main__":
    main()
