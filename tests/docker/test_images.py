"""The Dockerfile installs what its images run; nothing that the api's image runs asks for torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docker.compose import DOCKER, PROJECT

DOCKERFILE = (DOCKER / "Dockerfile").read_text()
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]

API_MODULES = ["app.serving.api", "app.cli", "app.client", "app.ledger.checkpoints"]
WORKER_MODULES = ["worker.main", "worker.compute", "worker.resident"]

IMPORT_WITHOUT = """
import importlib, json, sys
from importlib.machinery import PathFinder

absent, wanted = json.loads(sys.argv[1])

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
for name in wanted:
    importlib.import_module(name)
"""


def required(requirements: list[str]) -> set[str]:
    """Names of all installed distributions that these need, directly or not."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in found:
                found.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in distribution(name).requires or []]
    return {name for name, _ in found}


def import_without(present: set[str], modules: list[str]) -> subprocess.CompletedProcess[str]:
    """Import ``modules`` where only the distributions ``present`` are installed, beside the standard library."""
    absent = [
        module
        for module, owners in packages_distributions().items()
        if "modelmend" not in owners and not {canonicalize_name(owner) for owner in owners} & present
    ]
    return subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT, json.dumps([absent, modules])],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_the_api_runs_needs_only_the_dependencies() -> None:
    present = required(PYPROJECT["dependencies"])
    assert not {"torch", "torchvision", "scipy", "scikit-learn", "matplotlib"} & present
    found = import_without(present, API_MODULES)
    assert found.returncode == 0, found.stderr
    assert "torch" in import_without(present, WORKER_MODULES).stderr.splitlines()[-1]


def test_what_the_worker_runs_needs_only_its_extra() -> None:
    present = required(PYPROJECT["dependencies"] + PYPROJECT["optional-dependencies"]["worker"])
    found = import_without(present, WORKER_MODULES)
    assert found.returncode == 0, found.stderr


def stages() -> dict[str, list[str]]:
    """Instructions by name of stage, continued lines joined, comments left out."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: dict[str, list[str]] = {}
    for line in filter(None, joined.splitlines()):
        if match := re.fullmatch(r"FROM \S+ AS (\S+)", line):
            found[match[1]] = []
        found[list(found)[-1]].append(line)
    return found


def ours(compose: dict[str, Any]) -> dict[str, Any]:
    return {name: service for name, service in compose["services"].items() if "build" in service}


def test_services_are_built_from_stages_that_there_are(compose: dict[str, Any]) -> None:
    for name, service in ours(compose).items():
        assert service["build"]["target"] in stages(), name
        assert (Path(service["build"]["context"]) / service["build"]["dockerfile"]).is_file()
        assert service["image"] == f"modelmend-{service['build']['target']}"


@pytest.mark.parametrize("name", ["api", "worker"])
def test_images_run_as_the_user_that_owns_their_directories(compose: dict[str, Any], name: str) -> None:
    instructions = stages()[name]
    user = compose["services"][name]["user"]
    assert f"USER {user}" in instructions
    uid, gid = user.split(":")
    (made,) = (line for line in stages()["base"] if line.startswith("RUN"))
    assert f"--uid {uid} --gid {gid}" in made
    for volume in compose["services"][name]["volumes"]:
        assert volume["target"] in made, "a new volume takes the owner of the directory it covers"
    assert f"install --directory --owner {uid} --group {gid} --mode 0700" in made


def test_commands_are_those_of_the_images(compose: dict[str, Any]) -> None:
    for name in ("api", "worker"):
        (instruction,) = (line for line in stages()[name] if line.startswith("CMD"))
        assert json.loads(instruction.removeprefix("CMD ")) == compose["services"][name]["command"]


def test_every_copied_file_is_there_and_not_ignored() -> None:
    sources = {
        source
        for lines in stages().values()
        for line in lines
        if line.startswith("COPY") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert sources == {"pyproject.toml", "README.md", "LICENSE", "app", "worker", "migrations"}
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == sources
    assert all((PROJECT / source).exists() for source in sources)


def test_installed_extras_are_declared() -> None:
    extras = set(re.findall(r"pip install '\.\[(\w+)\]'", DOCKERFILE))
    assert extras == {"worker"}
    assert extras <= set(PYPROJECT["optional-dependencies"])


def test_python_is_one_that_the_project_runs_on() -> None:
    used = set(re.findall(r"FROM python:([\d.]+)-slim", DOCKERFILE))
    assert used == {"3.11"}
    assert PYPROJECT["requires-python"] == ">=3.11"
