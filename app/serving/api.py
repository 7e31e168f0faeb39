"""``python -m app.serving.api DESCRIPTOR``: the API on a listening socket that the parent opened and keeps open."""

from __future__ import annotations

import logging
import socket
import sys

import uvicorn

from app.main import create_app

GRACE_SECONDS = 2  # for requests that run when the end is asked for


def main() -> None:
    """Serve until SIGTERM. Settings come from the environment."""
    logging.basicConfig(level=logging.WARNING)
    listener = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(
        create_app(),
        log_config=None,
        access_log=False,  # its paths hold the keys of samples
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
