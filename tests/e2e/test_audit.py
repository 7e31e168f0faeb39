"""The auditor's walk, as printed, against ``modelmend serve``: each command does what the page shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from app.client import Client
from tests.e2e.serving import served

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
ADDRESS = "http://127.0.0.1:8000"
PAUSE = "=== step"
# What differs from run to run, most telling first.
VARIABLE = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uuid>"),
    (r"[0-9a-f]{64}", "<sha256>"),
    (r"modelmend\.local/[0-9a-f]{8}", "<origin>"),
    (r"<origin>\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{44,}", "<key>"),
    (r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{43}=", "<root>"),
    (r"[0-9][0-9,.:]*", "<number>"),
    (r"[ \t]+", " "),
)


def steps() -> list[tuple[str, str | None]]:
    """Each script of the page with the output that follows it, if one does."""
    blocks = re.findall(r"^```(sh|text)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found: list[tuple[str, str | None]] = []
    for language, block in blocks:
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
        (tmp_path / ".venv").symlink_to(Path(sys.prefix))
        modelmend = str(Path(sys.prefix) / "bin" / "modelmend")
        subprocess.run([modelmend, "demo-data", "digits"], cwd=tmp_path, check=True, capture_output=True)
        with service.client() as client:
            correct_labels(client, tmp_path / "digits")
        walk = steps()
        assert sum(output is not None for _, output in walk) >= 8
        script = f"\necho '{PAUSE}'\n".join(block for block, _ in walk).replace(ADDRESS, service.record.url)
        ran = subprocess.run(
            ["bash", "-uc", f"exec 2>&1\n{script}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        printed = ran.stdout.split(f"{PAUSE}\n")
        assert len(printed) == len(walk), ran.stdout
        for (block, expected), output in zip(walk, printed, strict=True):
            assert normalised(output) == normalised(expected or ""), f"{block}\n{output}"
