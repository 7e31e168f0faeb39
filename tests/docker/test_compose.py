"""What ``docker-compose config`` makes of the file: least rights, nothing secret in sight, one port."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import Any

import pytest

from app.embedded import programs
from app.settings import Settings
from tests.docker.compose import PROGRAMS, PROJECT, configuration

COMPOSE = configuration("*")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LONG_RUNNING = {"postgres", "redis", "api", "worker", "worker-gpu"}
OURS = {"migrate", "api", "worker", "worker-gpu"}

every_service = pytest.mark.parametrize("name", sorted(SERVICES))


def secret_sources(name: str) -> set[str]:
    return {secret["source"] for secret in SERVICES[name]["secrets"]}


def mounted_volumes(name: str) -> dict[str, str]:
    return {volume["source"]: volume["target"] for volume in SERVICES[name].get("volumes", [])}


def test_services() -> None:
    assert set(SERVICES) == LONG_RUNNING | {"migrate"}
    assert set(configuration()["services"]) == set(SERVICES) - {"worker-gpu"}


@every_service
def test_rights_are_the_least(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].split(":")[0] not in {"", "0", "root"}
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert not service.get("privileged")
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    for kind in ("pid", "ipc", "network_mode", "userns_mode", "devices", "group_add"):
        assert kind not in service


@every_service
def test_nothing_of_the_machine_is_mounted_but_secrets_and_configs(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        assert volume["type"] == "volume"
        assert volume["source"] in COMPOSE["volumes"]
    assert not any("docker.sock" in str(value) for value in SERVICES[name].values())


@every_service
def test_memory_and_processes_are_limited(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert 0 < int(limits["memory"]) <= 8 << 30
    assert 0 < limits["pids"] <= 512
    for place in SERVICES[name].get("tmpfs", []):
        size = dict(option.split("=") for option in place.split(":")[1].split(","))["size"]
        assert int(size[:-1]) << {"m": 20, "g": 30}[size[-1]] < int(limits["memory"]), "a tmpfs counts as memory"


@every_service
def test_logs_do_not_fill_the_disk(name: str) -> None:
    assert SERVICES[name]["logging"] == {"driver": "local", "options": {"max-file": "3", "max-size": "10m"}}


@every_service
def test_health_is_watched_and_ends_are_seen_to(name: str) -> None:
    service = SERVICES[name]
    if name in LONG_RUNNING:
        assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
        assert service["restart"] == "unless-stopped"
    else:
        assert service["restart"] == "no"


@every_service
def test_images_of_others_are_of_one_major_version(name: str) -> None:
    if name not in OURS:
        assert SERVICES[name]["image"] in {"postgres:18", "redis:8"}


@every_service
def test_secrets_are_files_only(name: str) -> None:
    service = SERVICES[name]
    assert not {"password", "secret", "token", "_url"} & {
        word
        for word in ("password", "secret", "token", "_url")
        for key in service.get("environment", {})
        if word in key.lower() and not key.endswith("_FILE")
    }
    shown = str({key: service.get(key) for key in ("environment", "command", "entrypoint", "healthcheck", "labels")})
    assert "://" not in shown
    assert "docker/secrets" not in shown
    assert "args" not in service.get("build", {})
    for source in secret_sources(name):
        assert set(COMPOSE["secrets"][source]) == {"name", "file"}


def test_each_service_gets_only_its_secrets() -> None:
    service_urls = {"service_database_url", "redis_url"}
    assert {name: secret_sources(name) for name in SERVICES} == {
        "postgres": {"owner_password", "service_password"},
        "redis": {"redis_acl"},
        "migrate": {"owner_database_url"},
        "api": service_urls,
        "worker": service_urls,
        "worker-gpu": service_urls,
    }
    assert set(COMPOSE["secrets"]) == set().union(*map(secret_sources, SERVICES))


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_secrets_and_variables_are_settings(name: str) -> None:
    variables = {secret["target"].upper() for secret in SERVICES[name]["secrets"]}
    variables |= set(SERVICES[name].get("environment", {}))
    assert variables <= {f"MODELMEND_{field.upper()}" for field in Settings.model_fields}


def test_only_the_api_publishes_a_port_and_only_to_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"api"}
    (port,) = published["api"]
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "8000", 8000)
    (elsewhere,) = configuration(MODELMEND_PUBLISH="0.0.0.0:80")["services"]["api"]["ports"]
    assert (elsewhere["host_ip"], elsewhere["published"]) == ("0.0.0.0", "80")  # noqa: S104 - asked for


def test_networks_lead_nowhere_but_for_the_apis() -> None:
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert networks == {
        "postgres": {"database"},
        "redis": {"doorbell"},
        "migrate": {"database"},
        "api": {"front", "database", "doorbell"},
        "worker": {"database", "doorbell"},
        "worker-gpu": {"database", "doorbell"},
    }
    assert {name for name, network in COMPOSE["networks"].items() if not network.get("internal")} == {"front"}


def test_signing_keys_are_the_apis_alone() -> None:
    holders = {name for name in SERVICES if "signing" in mounted_volumes(name)}
    assert holders == {"api"}
    assert mounted_volumes("worker") == {"data": mounted_volumes("api")["data"]}
    assert set(COMPOSE["volumes"]) == set().union(*map(mounted_volumes, SERVICES))


def test_settings_point_into_volumes() -> None:
    volumes, environment = mounted_volumes("api"), SERVICES["api"]["environment"]
    assert environment["MODELMEND_SIGNING_DIR"] == volumes["signing"]
    assert environment["MODELMEND_CHECKPOINT_DIR"] == volumes["checkpoints"]
    assert f"MODELMEND_DATA_DIR={volumes['data']}" in (PROJECT / "docker" / "Dockerfile").read_text()


def test_a_gpu_is_reserved_in_its_profile_only() -> None:
    def devices(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = SERVICES[name]["deploy"]["resources"].get("reservations", {}).get("devices", [])
        return found

    assert {name for name in SERVICES if devices(name)} == {"worker-gpu"}
    (device,) = devices("worker-gpu")
    assert (device["driver"], "gpu" in device["capabilities"]) == ("nvidia", True)
    assert {name for name, service in SERVICES.items() if service.get("profiles")} == {"worker-gpu"}
    cpu, gpu = (SERVICES[name]["environment"] for name in ("worker", "worker-gpu"))
    assert gpu == cpu | {"MODELMEND_DEVICE": "cuda"}


def test_order_of_the_start() -> None:
    after = {
        name: {other: on["condition"] for other, on in service.get("depends_on", {}).items()}
        for name, service in SERVICES.items()
    }
    migrated = {"migrate": "service_completed_successfully", "redis": "service_healthy"}
    assert after == {
        "postgres": {},
        "redis": {},
        "migrate": {"postgres": "service_healthy"},
        "api": migrated,
        "worker": migrated,
        "worker-gpu": migrated,
    }


def test_a_stopping_worker_has_time_for_its_job() -> None:
    grace = SERVICES["worker"]["stop_grace_period"]
    assert grace.endswith("s")
    assert float(grace[:-1]) > Settings.model_fields["drain_seconds"].default


def test_mounted_files_are_there() -> None:
    for config in COMPOSE["configs"].values():
        assert Path(config["file"]).is_file()
    used = {config["source"]: config["target"] for s in SERVICES.values() for config in s.get("configs", [])}
    assert set(used) == set(COMPOSE["configs"])
    script = Path(COMPOSE["configs"]["postgres_logins"]["file"])
    assert script.stat().st_mode & 0o111 == 0o111, "the image runs executable scripts and sources others"
    assert used["redis_conf"] in SERVICES["redis"]["entrypoint"]
    acl = f"aclfile /run/secrets/{next(iter(secret_sources('redis')))}"
    assert acl in Path(COMPOSE["configs"]["redis_conf"]["file"]).read_text().splitlines()


@pytest.mark.parametrize("name", sorted(OURS))
def test_commands_exist(name: str) -> None:
    command = SERVICES[name]["command"]
    assert (PROGRAMS / command[0]).exists()
    if command[1] == "-m":
        assert importlib.util.find_spec(command[2])


def test_postgres_is_set_up_like_the_embedded_one() -> None:
    """As far as it matters for the order of texts and for what an erasure leaves in logs."""
    arguments = shlex.split(SERVICES["postgres"]["environment"]["POSTGRES_INITDB_ARGS"])
    locale = {option for option in programs.INITDB_OPTIONS if "locale" in option or "encoding" in option}
    assert locale <= set(arguments)
    given = dict(part.removeprefix("--").split("=") for part in SERVICES["postgres"]["command"][1:])
    erasing = ("wal_recycle", "log_min_error_statement", "log_error_verbosity")
    assert given == {name: programs.POSTGRES_SETTINGS[name] for name in erasing}
