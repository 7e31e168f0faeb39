"""Bring a database to the newest schema."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations


def upgrade(database_url: str) -> None:
    """Apply all migrations that ``database_url`` lacks; safe to run on every start."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["database_url"] = database_url
    command.upgrade(config, "head")
