"""A database and a queue for each test, on servers that the whole session shares."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import redis
from sqlalchemy import Connection, NullPool, create_engine, make_url, text

from app.embedded import ServerURLs, running_servers
from app.migrate import upgrade

REDIS_DATABASE = 15  # emptied before and after each test; of a configured server, tests touch nothing else


@contextmanager
def session_servers() -> Iterator[ServerURLs]:
    """The servers that the environment names, as for the service; else throw-away embedded ones."""
    database_url, redis_url = (os.environ.get(f"MODELMEND_{name}_URL") for name in ("DATABASE", "REDIS"))
    with (
        tempfile.TemporaryDirectory(prefix="modelmend-tests-") as directory,
        running_servers(database_url, redis_url, Path(directory), durable=False) as urls,
    ):
        yield urls


@contextmanager
def migrated_template(database_url: str) -> Iterator[str]:
    """Name of a database on the server of ``database_url``, built by the migrations, that nobody is connected to."""
    with _new_database(database_url, "") as template:
        upgrade(_url_of(database_url, template))
        yield template


@contextmanager
def copied_database(database_url: str, template: str) -> Iterator[str]:
    """URL of a copy of ``template``; it is dropped afterwards, whoever is still connected."""
    with _new_database(database_url, f'TEMPLATE "{template}"') as name:
        yield _url_of(database_url, name)


@contextmanager
def emptied_redis(redis_url: str) -> Iterator[str]:
    """URL of a database on the server of ``redis_url`` that is empty now and again afterwards."""
    place, _, query = redis_url.partition("?")
    url = f"{place}?{urlencode(dict(parse_qsl(query)) | {'db': str(REDIS_DATABASE)})}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@contextmanager
def _new_database(database_url: str, how: str) -> Iterator[str]:
    name = f"modelmend_test_{secrets.token_hex(6)}"
    with _administrator(database_url) as connection:
        connection.execute(text(f'CREATE DATABASE "{name}" {how}'))
    try:
        yield name
    finally:
        with _administrator(database_url) as connection:
            connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))


@contextmanager
def _administrator(database_url: str) -> Iterator[Connection]:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def _url_of(database_url: str, database: str) -> str:
    return make_url(database_url).set(database=database).render_as_string(hide_password=False)
