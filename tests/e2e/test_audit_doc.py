"""The auditor's walk, as printed, against ``modelmend serve``: each command does what the page shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from app.client import Client
from tests.e2e.printed import blocks, run_scripts
from tests.e2e.serving import served

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
# What differs from run to run, most telling first.
VARIABLE = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uuid>"),
    (r"[0-9a-f]{64}", "<sha256>"),
    (r"modelmend\.local/[0-9a-f]{8}", "<origin>"),
    (r"<origin>\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{44,}", "<key>"),
    (r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{43}=", "<root>"),
    (r"(?<!exit status )\b[0-9][0-9,.:]*", "<number>"),
    (r"[ \t]+", " "),
)


def steps() -> list[tuple[str, str | None]]:
    """Each script of the page with the output that follows it, if one does."""
    found: list[tuple[str, str | None]] = []
    for language, block in blocks(PAGE.read_text(encoding="utf-8"), "sh", "text"):
        if language == "sh":
            found.append((block, None))
        else:
            found[-1] = (found[-1][0], block)
    return found


def normalised(output: str) -> list[str]:
    for pattern, name in VARIABLE:
        output = re.sub(pattern, name, output)
    return [line.strip() for line in output.strip().splitlines()]


def correct_labels(client: Client, files: Path) -> None:
    """The README's road up to version 2."""
    definition = json.loads((files / "definition.json").read_bytes())
    client.register_dataset(definition, files / "manifest.csv", files / "images.zip")
    architecture = {"name": "small_conv", "width": 32, "image_size": 8, "channels": 1}
    client.wait(client.create_model("digits", definition["id"], architecture))
    client.wait(client.fit_factors("digits"))
    client.wait(client.edit("digits", json.loads((files / "fix-labels.json").read_bytes())["operations"]))


def test_the_walk_is_as_printed(tmp_path: Path) -> None:
    with served(tmp_path, "--port", "0") as service:
        assert service.run("demo-data", "digits").returncode == 0
        with service.client() as client:
            correct_labels(client, tmp_path / "digits")
        walk = steps()
        assert sum(output is not None for _, output in walk) >= 11
        # Some commands are there to fail: their exit status is printed.
        printed = run_scripts([block for block, _ in walk], service, options="-u")

        for (block, expected), output in zip(walk, printed, strict=True):
            assert normalised(output) == normalised(expected or ""), f"{block}\n{output}"
    everything = "".join(printed)
    (accepted,) = re.findall(r"^([0-9]+) edit\.accepted", everything, re.MULTILINE)
    assert re.findall(r"^It is in (.*)\.$", everything, re.MULTILINE)[:2] == [f"entry {accepted}", "entry 5"]
