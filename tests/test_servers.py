"""The fixtures every other test stands on."""

from __future__ import annotations

import redis
from sqlalchemy import NullPool, create_engine, text

from app.embedded import ServerURLs
from tests.servers import copied_database


def test_each_test_gets_a_migrated_database_of_its_own(
    database_url: str, servers: ServerURLs, template_database: str
) -> None:
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar_one() == 1
        connection.execute(text("CREATE TABLE only_here ()"))
    with copied_database(servers.database_url, template_database) as other_url:
        other = create_engine(other_url, poolclass=NullPool)
        with other.connect() as connection:
            assert connection.execute(text("SELECT to_regclass('only_here')")).scalar_one() is None


def test_a_database_is_dropped_under_a_connection_that_a_test_forgot(
    servers: ServerURLs, template_database: str
) -> None:
    with copied_database(servers.database_url, template_database) as url:
        connection = create_engine(url, poolclass=NullPool).connect()
        name = connection.execute(text("SELECT current_database()")).scalar_one()
    with create_engine(servers.database_url, poolclass=NullPool).connect() as observer:
        found = observer.execute(text("SELECT FROM pg_database WHERE datname = :name"), {"name": name})
        assert found.first() is None
    connection.invalidate()
    connection.close()


def test_redis_starts_empty(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "over")


def test_redis_starts_empty_after_a_test_that_wrote(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
