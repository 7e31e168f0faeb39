"""The init script's logins on a real Postgres: what each may do, above all what it may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.docker.compose import Cluster, Container, cluster

Connection = psycopg.Connection[tuple[Any, ...]]

REFUSED_OF_THE_LEDGER = [
    "UPDATE ledger_entries SET kind = 'x'",
    "DELETE FROM ledger_entries",
    "TRUNCATE ledger_entries",
    "UPDATE ledger_nodes SET hash = hash",
    "UPDATE ledger_payloads SET payload = '{}'",
    "ALTER TABLE ledger_entries DISABLE TRIGGER append_only",
    "DROP TABLE ledger_entries",
    "ALTER TABLE ledger_entries OWNER TO modelmend_service",
    "UPDATE alembic_version SET version_num = '0001'",
]


@pytest.fixture
def service(migrated: Cluster, secrets: Path) -> Iterator[Connection]:
    with migrated.login("modelmend_service", (secrets / "service_password").read_text()) as connection:
        yield connection


def test_passwords_are_those_of_the_files(postgres: Cluster, secrets: Path) -> None:
    for who in ("owner", "service"):
        with postgres.login(f"modelmend_{who}", (secrets / f"{who}_password").read_text()) as connection:
            assert connection.execute("SELECT current_user").fetchone() == (f"modelmend_{who}",)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            postgres.login(f"modelmend_{who}", (secrets / "redis_password").read_text())


def test_logins_have_no_rights_over_the_server(postgres: Cluster) -> None:
    with postgres.superuser() as connection:
        roles = connection.execute(
            "SELECT rolname, rolcanlogin, rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls "
            "FROM pg_roles WHERE rolname LIKE 'modelmend\\_%' ORDER BY rolname"
        ).fetchall()
        members = connection.execute(
            "SELECT member::regrole::text, roleid::regrole::text, admin_option "
            "FROM pg_auth_members WHERE member::regrole::text LIKE 'modelmend\\_%'"
        ).fetchall()
        password = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = current_user").fetchone()
    assert roles == [
        ("modelmend_app", False, False),
        ("modelmend_owner", True, False),
        ("modelmend_service", True, False),
    ]
    assert members == [("modelmend_service", "modelmend_app", False)]
    assert password == (None,)  # the superuser's


@pytest.mark.parametrize("database", ["postgres", "template1"])
def test_logins_reach_one_database(postgres: Cluster, secrets: Path, database: str) -> None:
    for who in ("owner", "service"):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            postgres.login(f"modelmend_{who}", (secrets / f"{who}_password").read_text(), database)


def test_the_owner_migrates(migrated: Cluster, containers: dict[str, Container]) -> None:
    with migrated.superuser() as connection:
        owners = connection.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert owners == [("modelmend_owner",)]
    again = containers["migrate"].run(containers["migrate"].service["command"])
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("role", ["modelmend_app", "modelmend_service"])
@pytest.mark.parametrize("statement", REFUSED_OF_THE_LEDGER)
def test_the_service_cannot_change_the_ledger(service: Connection, role: str, statement: str) -> None:
    """Neither in the role that it works in, nor after it went back to its login's own."""
    service.execute("SET ROLE modelmend_app")
    if role == "modelmend_service":
        service.execute("RESET ROLE")
    assert service.execute("SELECT current_user").fetchone() == (role,)
    with pytest.raises(errors.InsufficientPrivilege):
        service.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SET ROLE modelmend_owner",
        "SET SESSION AUTHORIZATION modelmend_owner",
        "CREATE TABLE public.mine (id int)",
        "CREATE TEMPORARY TABLE mine (id int)",
        "CREATE SCHEMA mine",
        "CREATE ROLE mine",
        "ALTER ROLE modelmend_app LOGIN",
        "COPY api_keys TO PROGRAM 'cat'",
        "SELECT pg_read_file('/etc/passwd')",
    ],
)
def test_the_service_gets_no_further(service: Connection, statement: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        service.execute(statement)


def test_without_its_secrets_the_script_fails_and_makes_nothing(tmp_path: Path, secrets: Path) -> None:
    partly = tmp_path / "secrets"
    partly.mkdir()
    (partly / "owner_password").write_text((secrets / "owner_password").read_text())
    with cluster(tmp_path / "postgres") as server:
        for content in (None, ""):
            if content is not None:
                (partly / "service_password").write_text(content)
            ran = server.run_init_script(partly)
            assert (ran.returncode, "service_password is missing or empty" in ran.stderr) == (1, True)
        with server.superuser() as connection:
            made = connection.execute("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'modelmend\\_%'").fetchone()
    assert made == (0,)


def test_a_restored_backup_has_the_same_rights(migrated: Cluster, secrets: Path, tmp_path: Path) -> None:
    """With the README's options."""
    dump = migrated.program("pg_dump", "--format", "custom", "modelmend")
    with cluster(tmp_path) as server:
        assert server.run_init_script(secrets).returncode == 0
        server.program("pg_restore", "--dbname", "modelmend", "--exit-on-error", given=dump)
        with server.login("modelmend_service", (secrets / "service_password").read_text()) as service:
            assert service.execute("SELECT version_num FROM alembic_version").fetchone()
            service.execute("SELECT FROM ledger_entries")
            with pytest.raises(errors.InsufficientPrivilege):
                service.execute("UPDATE ledger_entries SET kind = 'x'")
