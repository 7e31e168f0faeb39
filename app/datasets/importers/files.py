"""Finding the files of a download, and saying exactly what is not there."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.datasets.importers.plan import SourceProblem, counted, some

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


@dataclass(frozen=True)
class Expected:
    """A file or directory of a download.

    Attributes:
        places: where it may lie, relative to the root.
        source: which archive or page it comes from.
    """

    places: tuple[str, ...]
    source: str
    directory: bool = False

    def find(self, root: Path) -> Path | None:
        """Where it lies, or ``None``."""
        for place in self.places:
            path = root / place
            if path.is_dir() if self.directory else path.is_file():
                return path
        return None

    def missing(self, root: Path) -> str:
        what = "directory" if self.directory else "file"
        places = " or ".join(os.path.normpath(root / place) for place in self.places)
        return f"The {what} {places} is missing; it comes with {self.source}."


def existing_directory(root: Path) -> Path:
    """``root``; raises SourceProblem when it is no directory."""
    if root.is_dir():
        return root
    hint = " Unpack the archive first." if root.is_file() else ""
    raise SourceProblem("Nothing can be imported:", [f"{root} is not a directory.{hint}"])


def find_all(title: str, root: Path, expected: Sequence[Expected]) -> list[Path]:
    """Where each of ``expected`` lies.

    Raises:
        SourceProblem: some are missing; all of them are named.
    """
    existing_directory(root)
    found = [item.find(root) for item in expected]
    absent = [item.missing(root) for item, path in zip(expected, found, strict=True) if path is None]
    if absent:
        raise SourceProblem(f"This is not a complete {title}:", absent)
    return [path for path in found if path is not None]


def require_images(title: str, root: Path, images: Iterable[str], source: str) -> None:
    """Raises SourceProblem when images (paths below ``root``) are not there; every directory is listed once."""
    listed: dict[str, set[str]] = {}
    total = 0
    absent = []
    for image in images:
        total += 1
        folder, _, name = image.rpartition("/")
        if folder not in listed:
            listed[folder] = _files_in(root / folder)
        if name not in listed[folder]:
            absent.append(image)
    if absent:
        raise SourceProblem(
            f"This is not a complete {title}:",
            [
                f"{len(absent):,} of {counted(total, 'image')} missing below {root}: {some(absent)}. "
                f"They come with {source}."
            ],
        )


def _files_in(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1, stripped; raises SourceProblem when it is not UTF-8 text."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if text := line.strip():
                    yield number, text
    except UnicodeDecodeError as error:
        raise SourceProblem("A file cannot be read:", [f"{path} is not text in UTF-8."]) from error


def pairs(path: Path) -> Iterator[tuple[int, str, str]]:
    """Lines of two fields (the second may hold blanks): number of the line, fields.

    Raises:
        SourceProblem: a line has one field.
    """
    for number, line in numbered_lines(path):
        first, _, second = line.partition(" ")
        if not second.strip():
            raise malformed(path, number, "has one field instead of two")
        yield number, first, second.strip()


def table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file by column, stripped, with their numbers from 1. The first item is row 0: the header.

    Raises:
        SourceProblem: it is not UTF-8, not CSV, empty, or a row has another number of cells than the header.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            if repeated := [name for name, count in Counter(header).items() if count > 1]:
                raise SourceProblem("A file cannot be read:", [f"{path} has columns twice: {some(repeated)}."])
            if not any(header):
                raise SourceProblem("A file cannot be read:", [f"{path} is empty: the first line names the columns."])
            yield 0, dict.fromkeys(header, "")
            for number, cells in enumerate(rows, 1):
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise malformed(
                        path, number, f"has {counted(len(cells), 'cell')}, the header {len(header)}", line="Row"
                    )
                yield number, dict(zip(header, (cell.strip() for cell in cells), strict=True))
    except UnicodeDecodeError as error:
        raise SourceProblem("A file cannot be read:", [f"{path} is not text in UTF-8."]) from error
    except csv.Error as error:
        raise SourceProblem("A file cannot be read:", [f"{path} is not CSV: {error}."]) from error


def require_columns(path: Path, header: Iterable[str], wanted: Iterable[str]) -> None:
    """Raises SourceProblem naming the columns that are missing, and those there are."""
    there = list(header)
    absent = [name for name in wanted if name not in there]
    if absent:
        raise SourceProblem(
            "A table lacks columns:",
            [f"{path} lacks: {some(absent)}. Its columns are: {some(there, 40)}."],
        )


def malformed(path: Path, number: int, what: str, *, line: str = "Line") -> SourceProblem:
    """A line that is not as expected."""
    return SourceProblem("A file is not as expected:", [f"{line} {number} of {path} {what}."])
