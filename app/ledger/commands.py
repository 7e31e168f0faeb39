"""``modelmend ledger``: for auditors and witnesses, who trust a key and not the service."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console, Group
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from app.client import Client, ClientError
from app.ledger.checkpoints import MalformedKey, VerifierKey
from app.ledger.exports import lines_of
from app.ledger.findings import OutsideCheckpoint, TamperingFound, UnreadableExport, Verified, entries_text
from app.ledger.verification import MAX_RECEIPT_BYTES, outside_checkpoint, trusted
from app.ledger.verification import verify as verify_lines
from app.ledger.witness import Alarm, CannotWitness, Sighting, look
from app.terminal import CommandError, existing_file

ledger = typer.Typer(help="The history, held to what was signed. Needs no service but a key.", no_args_is_help=True)

NOT_AS_SIGNED = 3
"""Exit status: the history is not the one that was signed."""

_PROGRESS_FROM = 16 << 20  # bytes; smaller files are verified within a second
_UNFINISHED = "unfinished"  # folder of an archive of checkpoints

Keys = Annotated[
    list[str],
    typer.Option("--key", metavar="KEY", help="Verifier key name+id+base64, or a file of them; may be repeated."),
]


@ledger.command()
def verify(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="An export or a receipt; - is standard input.")],
    key: Keys,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Checkpoint or receipt kept elsewhere, or a directory of them; may be repeated.",
        ),
    ] = None,
) -> None:
    """Hash an export or receipt again and hold it to its signed checkpoints, and to those kept outside.

    Exit status 3: it is not what was signed; the first bad entry is named.
    """
    keys = _keys(key)
    outside = [kept for path in checkpoint or [] for kept in _outside(path, keys)]
    try:
        with _opened(file) as (source, size), _watched(source, size) as lines:
            verified = verify_lines(lines, keys, outside)
    except UnreadableExport as error:
        name = "Standard input" if file == "-" else file
        raise CommandError(f"{name} is no export or receipt that can be verified. {error}") from error
    except TamperingFound as found:
        _accuse(str(found), _where(found))
        raise typer.Exit(NOT_AS_SIGNED) from found
    Console().print(_report(verified, len(outside)), soft_wrap=True)


@ledger.command()
def witness(
    *,
    url: Annotated[str, typer.Option(envvar="MODELMEND_URL", help="The service.")],
    api_key: Annotated[str, typer.Option(envvar="MODELMEND_KEY", help="API key of any role.")],
    key: Keys,
    state: Annotated[Path, typer.Option(metavar="FILE", help="Keeps the last checkpoint; made if it is not there.")],
    every: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Look again and again, until Ctrl-C.")
    ] = None,
) -> None:
    """Hold the newest checkpoint of a service to the one seen before. Run it where the service's operator cannot.

    Exit status 3: the service's history does not extend the one that it has signed before.
    """
    keys = _keys(key)
    if not state.resolve().parent.is_dir():
        raise CommandError(f"There is no directory {state.resolve().parent} for the state. Make it, or choose another.")
    with Client(url, api_key) as client:
        while True:
            try:
                typer.echo(_sighted(look(client, keys, state)))
            except Alarm as alarm:
                _accuse(str(alarm), *alarm.evidence)
                raise typer.Exit(NOT_AS_SIGNED) from alarm
            except (ClientError, CannotWitness) as error:
                if every is None:
                    raise CommandError(str(error)) from error
                Console(stderr=True).print(Text.assemble(("Not checked: ", "bold yellow"), str(error)), soft_wrap=True)
            if every is None:
                return
            threading.Event().wait(every)


def _keys(given: list[str]) -> list[VerifierKey]:
    keys = [key for text in given for key in _keys_in(text)]
    try:
        return trusted(keys)
    except ValueError as error:
        names = ", ".join(sorted({key.name for key in keys})) or "none"
        raise CommandError(f"The keys must all be of one log, and these are of: {names}.") from error


def _keys_in(text: str) -> list[VerifierKey]:
    try:
        return [VerifierKey.parse(text)]
    except MalformedKey as error:
        if not Path(text).is_file():
            raise CommandError(f"{text} is neither a file nor a key: {error}.") from error
    lines = Path(text).read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        return [VerifierKey.parse(line.strip()) for line in lines if line.strip()]
    except MalformedKey as error:
        raise CommandError(f"{text} holds a line that is no key: {error}.") from error


def _outside(path: Path, keys: list[VerifierKey]) -> list[OutsideCheckpoint]:
    files = [existing_file(path)] if not path.is_dir() else sorted(filter(Path.is_file, path.rglob("*")))
    found = []
    for file in files:
        inside = file.relative_to(path).parts
        if _UNFINISHED in inside or any(part.startswith(".") for part in inside):
            continue
        with file.open("rb") as source:
            try:
                found.append(outside_checkpoint(source.read(MAX_RECEIPT_BYTES), str(file), keys))
            except UnreadableExport as error:
                raise CommandError(f"Nothing can be held to {file}. {error}") from error
    if not found:
        raise CommandError(f"There is no checkpoint in {path}.")
    return found


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size in bytes; 0 for standard input, whose size is not known."""
    if file == "-":
        yield typer.get_binary_stream("stdin"), 0
        return
    path = existing_file(Path(file))
    with path.open("rb") as source:
        yield source, path.stat().st_size


@contextmanager
def _watched(source: BinaryIO, size: int) -> Iterator[Iterator[bytes]]:
    """The lines, with a progress bar on a terminal while a large file is read."""
    console = Console(stderr=True)
    if not console.is_terminal or size < _PROGRESS_FROM:
        yield lines_of(source)
        return
    columns = (TextColumn("Verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=size)

        def counted() -> Iterator[bytes]:
            read = reported = 0
            for line in lines_of(source):
                read += len(line)
                if read - reported > size // 200:
                    progress.update(task, completed=read)
                    reported = read
                yield line

        yield counted()


def _report(verified: Verified, outside: int) -> Group:
    facts = (
        ("entries", f"{verified.entries:,}"),
        ("checkpoints", f"{verified.checkpoints:,}"),
        ("outside checkpoints", f"{verified.outside_checkpoints:,} of {outside:,}"),
        ("erased payloads", f"{verified.erased_payloads:,}"),
        ("size of the history", f"{verified.size:,}"),
        ("root", base64.b64encode(verified.root).decode("ascii")),
    )
    verdict = Text(f"This {verified.document} is as {verified.origin} signed it.", style="bold green")
    return Group(
        verdict, *(Text(f"  {name:<19}  {value}") for name, value in facts), *map(Text, _limits(verified, outside))
    )


def _limits(verified: Verified, outside: int) -> list[str]:
    """What has not been shown."""
    limits = []
    if verified.document != "history":
        limits.append(f"Only a whole export can show that nothing is left out of a {verified.document}.")
        if verified.outside_checkpoints < outside:
            limits.append("Only a whole export can be held to checkpoints of other sizes.")
    elif not outside:
        limits.append("With the private key it could have been rewritten: only a --checkpoint kept elsewhere tells.")
    return limits


def _where(found: TamperingFound) -> str:
    if found.first_seq is None or found.last_seq is None:
        return ""
    return f"It is in {entries_text(found.first_seq, found.last_seq)}."


def _accuse(message: str, *details: str) -> None:
    console = Console(stderr=True)
    console.print(Text.assemble(("Not as signed: ", "bold red"), message), soft_wrap=True)
    for detail in filter(None, details):
        console.print(Text(detail), soft_wrap=True)


def _sighted(sighting: Sighting) -> str:
    now, before = sighting.checkpoint, sighting.before
    if before is None:
        return f"{now.size:,} entries; the first checkpoint seen, kept."
    if now == before:
        return f"{now.size:,} entries, as before."
    return f"{now.size:,} entries, which begin with the {before.size:,} seen before."
