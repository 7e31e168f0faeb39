"""``make-secrets.sh`` makes what compose mounts, once, and for nobody else."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from tests.docker.compose import make_secrets


def contents(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir()}


def test_every_secret_of_the_file_is_made(compose: dict[str, Any], secrets: Path) -> None:
    mounted = {Path(secret["file"]).name for secret in compose["secrets"].values()}
    assert mounted <= set(contents(secrets))
    assert {Path(secret["file"]).parent.name for secret in compose["secrets"].values()} == {"secrets"}


def test_nobody_else_reaches_them_and_containers_can_read_them(secrets: Path) -> None:
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in secrets.iterdir()} == {0o444}


def test_passwords_are_long_and_different(secrets: Path) -> None:
    passwords = {text for name, text in contents(secrets).items() if name.endswith("_password")}
    assert len(passwords) == 3
    assert all(re.fullmatch(r"[0-9a-f]{64}", password) for password in passwords)


def test_addresses_hold_the_passwords(secrets: Path) -> None:
    made = contents(secrets)
    for who in ("owner", "service"):
        url = make_url(made[f"{who}_database_url"])
        assert (url.username, url.password) == (f"modelmend_{who}", made[f"{who}_password"])
    assert make_url(made["redis_url"]).password == made["redis_password"]
    assert hashlib.sha256(made["redis_password"].encode()).hexdigest() in made["redis_acl"]
    assert made["redis_password"] not in made["redis_acl"]


def test_what_is_there_stays_and_what_is_missing_is_made(tmp_path: Path) -> None:
    tmp_path.joinpath("service_password").write_text("chosen")
    first = make_secrets(tmp_path)
    assert "kept    service_password" in first.stdout
    made = contents(tmp_path)
    assert made["service_password"] == "chosen"
    assert make_url(made["service_database_url"]).password == "chosen"
    tmp_path.joinpath("redis_acl").unlink()
    second = make_secrets(tmp_path)
    assert second.returncode == 0
    assert contents(tmp_path) == made
    assert second.stdout.count("made") == 1
    assert not any(secret in first.stdout + second.stdout for secret in made.values())
