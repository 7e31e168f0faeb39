"""The demo, with a training cut short, from an empty database to its report."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from app.demo.plan import Plan
from app.demo.run import run_demo
from app.serving import ServingError
from app.settings import Settings

KINDS = ["fix_concept_labels", "drop_concepts", "remove_samples", "add_samples", "remove_subject"]


def changed_entries(directory: Path) -> list[int]:
    """The numbers of the entries in which the demo's tampered copy differs from the history."""
    history, tampered = (
        [json.loads(line) for line in (directory / name).read_bytes().splitlines()]
        for name in ("history.jsonl", "tampered.jsonl")
    )
    return [one["entry"]["seq"] for one, other in zip(history, tampered, strict=True) if one != other]


def test_the_demo_does_what_it_says_and_a_second_one_keeps_off_its_data(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    settings = Settings(database_url=database_url, redis_url=redis_url)
    full = Plan()
    plan = replace(full, repeats=1, training={**full.training, "epochs": 8})
    console = Console(file=io.StringIO(), width=100)
    report = tmp_path / "report.json"
    data_dir = tmp_path / "data"
    succeeded = run_demo(settings, data_dir=data_dir, report=report, plan=plan, console=console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    written = json.loads(report.read_bytes())
    assert succeeded, shown
    assert written["device"] in {"cpu", "cuda"}
    assert written["seconds"] > 0
    edits = written["edits"]
    assert [(edit["kind"], edit["state"]) for edit in edits] == [(kind, "succeeded") for kind in KINDS]
    assert [edit["version"] for edit in edits] == [2, 3, 4, 5, 6]
    assert [edit["closure"] is not None for edit in edits] == [True, False, True, True, False]
    for edit in edits:
        assert edit["seconds"] > 0
        assert edit["retrain_seconds"] > 0
        for score in ("concept_f1", "label_f1"):
            assert all(0 < edit[f"{score}_{when}"] <= 1 for when in ("before", "after", "retrained")), edit
        aucs = [edit[f"auc_{when}"] for when in ("before", "after", "retrained")]
        if edit["kind"].startswith("remove"):
            assert all(0 <= auc <= 1 for auc in aucs)
        else:
            assert aucs == [None, None, None]
    for earlier, later in itertools.pairwise(edits):
        assert later["label_f1_before"] == pytest.approx(earlier["label_f1_after"])
    entries, detected = (written["ledger"][name] for name in ("entries", "tamper_detected_at"))
    assert written["ledger"] == {"entries": entries, "verified": True, "tamper_detected_at": detected}
    assert f"{entries} entries, as signed" in shown
    assert f"entry {detected} named" in shown
    assert changed_entries(data_dir / "demo") == [detected]
    assert "newest first" in shown
    assert "version.published" in shown
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.format == "PNG"
    with pytest.raises(ServingError, match="already"):
        run_demo(settings, data_dir=data_dir, report=report, plan=plan, console=console)
