"""Alembic's entry: migrates the database that the settings name."""

from __future__ import annotations

from alembic import context

from app.database import make_owner_engine
from app.settings import Settings
from app.tables import Base

url = context.config.attributes.get("database_url") or Settings().database_url
if not url:
    raise SystemExit("Set MODELMEND_DATABASE_URL to the database to migrate.")

engine = make_owner_engine(url)
try:
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata, compare_server_default=True)
        with context.begin_transaction():
            context.run_migrations()
finally:
    engine.dispose()
