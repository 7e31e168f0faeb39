"""Real Postgres and Redis out of wheels: no root, no container, no TCP port. Linux only.

``running_servers`` is what a command uses: it starts only what has no URL yet. ``python -m app.embedded COMMAND`` runs
a command against throw-away servers.
"""

from app.embedded.directories import DataDirectoryInUse
from app.embedded.errors import EmbeddedServersError
from app.embedded.processes import ServerStartError
from app.embedded.programs import EmbeddedNotInstalledError
from app.embedded.servers import EmbeddedServers, ServerURLs, running_servers

__all__ = [
    "DataDirectoryInUse",
    "EmbeddedNotInstalledError",
    "EmbeddedServers",
    "EmbeddedServersError",
    "ServerStartError",
    "ServerURLs",
    "running_servers",
]
