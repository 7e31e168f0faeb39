"""``modelmend datasets import`` as it is typed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from app import cli
from tests.app.datasets.importers.test_derm7pt import CASES, SPLITS
from tests.app.datasets.importers.trees import derm7pt_tree, table, write_images

SENTENCES = [
    ([], "Name --layout and --from, or --definition, --manifest and --images."),
    (["--layout", "cub"], "name the directory with --from"),
    (["--layout", "cub", "--from", ".", "--manifest", "a"], "and no definition, manifest or images"),
    (["--layout", "cub", "--from", "absent"], "absent is not a directory."),
    (["--layout", "celeba", "--from", ".", "--merge", "0,1"], "The layout celeba has no --merge."),
    (["--definition", "a", "--manifest", "b", "--images", ".", "--mask", "c"], "need --layout."),
]


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["modelmend", "datasets", "import", *options])
    with pytest.raises(SystemExit) as end:
        cli.main()
    output, messages = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, output, messages


@pytest.mark.parametrize(("options", "sentence"), SENTENCES, ids=[" ".join(options) for options, _ in SENTENCES])
def test_what_does_not_go_together_is_said(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output, messages = run(capsys, monkeypatch, *options)
    assert (status, output) == (1, "")
    assert messages.startswith("Error: ")
    assert sentence in messages


def test_an_incomplete_download_is_told_line_by_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "meta").mkdir()
    status, _, messages = run(capsys, monkeypatch, "--layout", "derm7pt", "--from", str(tmp_path))
    first, *missing = messages.splitlines()
    assert (status, first) == (1, "Error: This is not a complete Derm7pt:")
    assert len(missing) == 5
    assert f"The file {tmp_path / 'meta' / 'meta.csv'} is missing; it comes with release_v0.zip" in missing[1]


def test_a_layout_is_written_and_not_sent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    derm7pt_tree(tmp_path, CASES, SPLITS)
    status, output, messages = run(
        capsys,
        monkeypatch,
        *("--layout", "derm7pt", "--from", str(tmp_path), "--diagnosis", "melanoma", "--write", str(tmp_path / "out")),
    )
    assert status == 0
    assert [Path(line).name for line in output.splitlines()] == ["definition.json", "manifest.csv", "splits.csv"]
    assert "Derm7pt: 3 train, 2 calibration, 1 test; 7 concepts, 2 classes." in messages
    with (tmp_path / "out" / "manifest.csv").open() as file:
        assert [row["class"] for row in csv.DictReader(file)] == ["melanoma"] * 2 + ["other"] * 4


def test_options_of_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_images(tmp_path, ["0.png", "1.png", "2.png"], "PNG")
    table(tmp_path / "labels.csv", [{"image": f"{n}.png", "xrkl": str(n), "osteophytes": str(n)} for n in range(3)])
    options = ("--layout", "oai", "--from", str(tmp_path), "--write", str(tmp_path), "--subject-column", "")
    status, _, _ = run(
        capsys, monkeypatch, *options, *("--concepts", "osteophytes", "--threshold", "2", "--merge", "0, 1")
    )
    assert status == 0
    with (tmp_path / "manifest.csv").open() as file:
        assert [(row["class"], row["osteophytes"]) for row in csv.DictReader(file)] == [
            ("0-1", "0"),
            ("0-1", "0"),
            ("2", "1"),
        ]
