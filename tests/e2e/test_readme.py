"""The README's examples, as printed, against ``modelmend serve`` in a fresh directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.printed import blocks, here, run_scripts
from tests.e2e.serving import served

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def examples(language: str) -> list[str]:
    """Blocks of the section on the API, in order."""
    section = README.partition("## The API by hand")[2].partition("\n## ")[0]
    return [block for _, block in blocks(section, language)]


def objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects in an output, which curl prints one after the other without a line's end."""
    decoder, found = json.JSONDecoder(), []
    while "{" in text:
        text = text[text.index("{") :]
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_the_examples_work_as_printed(tmp_path: Path) -> None:
    with served(tmp_path, "--port", "0") as service:
        outputs = [objects(output) for output in run_scripts(examples("sh"), service, options="-eu")[1:]]
        (dataset,), trained, fitted, fixed, several, (refusal,), history, _ = outputs
        assert 1650 < sum(dataset["counts"].values()) < 1700
        assert {job["state"] for job in (trained[0], fitted[0], fixed[1], several[0])} == {"queued"}
        assert fixed[0]["counts"]["labels_changed"] > 0
        assert (refusal["status"], refusal["code"]) == (422, "invalid_edit")
        assert [error["pointer"] for error in refusal["errors"]] == ["/operations/0/samples/0"]
        edits, ledger = history
        assert len(ledger["entries"]) == 5
        assert edits["edits"][0]["request"]["reason"] == "request of 3 June"

        with service.client() as client:
            jobs = list(client.jobs("digits"))
            assert [job.kind for job in jobs] == ["edit", "edit", "fit_factors", "train"]
            assert {job.state for job in jobs} == {"succeeded"}, [job.error for job in jobs]
            version = client.version("digits", 2)
            assert len((tmp_path / "digits-v2.safetensors").read_bytes()) == len(client.weights("digits", 2))
            (python,) = examples("python")
            done = subprocess.run(
                [sys.executable, "-c", here(python, service)],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            number, score = done.stdout.split()
            dropped = client.version("digits", int(number))
            assert set(version.concepts) - set(dropped.concepts) == {"crossing"}
            assert float(score) == pytest.approx(dropped.metrics["concept_f1"])
