"""``modelmend datasets``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from app.client import Client, Stream
from app.datasets.importers import ImportPlan, SourceProblem
from app.datasets.importers.archives import zip_of
from app.datasets.importers.derm7pt import Diagnosis
from app.datasets.importers.layouts import Choices, Layout, read_layout
from app.datasets.importers.writing import votes_parquet, write_plan
from app.terminal import CommandError, Data, admin_key, existing_file, running_url, settings_of

datasets = typer.Typer(help="Data sets of a running service.", no_args_is_help=True)

# Checking two hundred thousand images takes the service minutes, in which it says nothing.
_ANSWER_SECONDS = 3600.0
_TABLES = "Tables (--layout oai)"
_LAYOUTS = "Layouts"


@datasets.command("import")
def import_dataset(
    *,
    layout: Annotated[
        Layout | None, typer.Option(help="Read a public data set's directory, or one of your own in such a form.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="With --layout: the unpacked directory.")
    ] = None,
    definition: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Without --layout: JSON with id, title, concepts, classes.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option(metavar="FILE", help="Without --layout: CSV or Parquet.")] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Without --layout: a zip, or a directory of images.")
    ] = None,
    votes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Without --layout: Parquet, where the definition has a vote_rule."),
    ] = None,
    dataset_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the data set; made up if not given.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the data set; default the layout's.")] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write definition, manifest and splits here and send nothing.")
    ] = None,
    splits: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="CSV of key, split: in place of the splits of the layout.", rich_help_panel=_LAYOUTS
        ),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="cub: attributes to keep, one per line.", rich_help_panel=_LAYOUTS),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="celeba: attributes that make the class.", rich_help_panel=_LAYOUTS),
    ] = None,
    diagnosis: Annotated[
        Diagnosis | None, typer.Option(help="derm7pt: what the class says.", rich_help_panel=_LAYOUTS)
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="oai: the table, default labels.csv in --from; folder: concepts of the images.",
            rich_help_panel=_LAYOUTS,
        ),
    ] = None,
    image_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Path of the image; default image.", rich_help_panel=_TABLES)
    ] = None,
    class_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The class; default xrkl.", rich_help_panel=_TABLES)
    ] = None,
    concepts: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Columns of grades; default ten of OAI.", rich_help_panel=_TABLES),
    ] = None,
    subject_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The person; default id, '' for none.", rich_help_panel=_TABLES)
    ] = None,
    split_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The split; default by hash of the person.", rich_help_panel=_TABLES),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]N",
            help="Grade from which a concept is 1, of one or all; default 1. May be repeated.",
            rich_help_panel=_TABLES,
        ),
    ] = None,
    merge: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,…", help="Classes that are one. May be repeated.", rich_help_panel=_TABLES),
    ] = None,
    url: Annotated[
        str | None, typer.Option(envvar="MODELMEND_URL", help="The service; default the one that runs on --data.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar="MODELMEND_KEY", help="API key; default admin.key in --data.")
    ] = None,
    data: Data = None,
) -> None:
    """Register a data set, all or nothing: a public one as it was downloaded, or a manifest with its images."""

    choices = Choices(
        splits=splits,
        mask=mask,
        targets=_listed(targets),
        diagnosis=diagnosis,
        table=table,
        image_column=image_column,
        class_column=class_column,
        concepts=_listed(concepts),
        subject_column=subject_column,
        split_column=split_column,
        thresholds=threshold or None,
        merged=[_listed(group) or [] for group in merge] if merge else None,
    )
    if layout is not None:
        if source is None or definition or manifest or images or votes:
            raise CommandError("With --layout, name the directory with --from, and no definition, manifest or images.")
        plan = _plan(layout, source, choices)
        if write is not None:
            for file in write_plan(plan, write, dataset_id=dataset_id, title=title):
                typer.echo(file)
            return
        wanted, rows = plan.definition(dataset_id, title), plan.manifest()
        pictures: Path | Stream = _streamed(plan.root, [row.image for row in plan.rows])
        cast = None if plan.votes is None else votes_parquet(plan, plan.votes)
        _register(wanted, rows, pictures, votes=cast, url=url, key=key, data=data)
        return

    if definition is None or manifest is None or images is None:
        raise CommandError("Name --layout and --from, or --definition, --manifest and --images.")
    if source or write or choices != Choices():
        raise CommandError("--from, --write and the options of layouts and tables need --layout.")
    try:
        wanted = json.loads(existing_file(definition).read_bytes())
    except ValueError as error:
        raise CommandError(f"{definition} is not JSON: {error}.") from error
    given = {name: text for name, text in (("id", dataset_id), ("title", title)) if text is not None}
    wanted = {**wanted, **given} if isinstance(wanted, dict) else wanted
    rows_file = existing_file(manifest)
    pictures = _streamed(images, _files_below(images)) if images.is_dir() else existing_file(images)
    cast_file = None if votes is None else existing_file(votes)
    _register(wanted, rows_file, pictures, votes=cast_file, url=url, key=key, data=data)


def _plan(layout: Layout, source: Path, choices: Choices) -> ImportPlan:
    try:
        plan = read_layout(layout, source, choices)
    except SourceProblem as problem:
        raise CommandError(str(problem)) from problem
    counts = ", ".join(f"{count:,} {split}" for split, count in plan.counts.items())
    console = Console(stderr=True)
    console.print(
        f"{plan.title}: {counts}; {len(plan.concepts)} concepts, {len(plan.classes):,} classes.", soft_wrap=True
    )
    for note in plan.notes:
        console.print(note, soft_wrap=True, style="dim", markup=False, highlight=False)
    return plan


def _register(
    definition: dict[str, Any],
    manifest: bytes | Path,
    images: Path | Stream,
    *,
    votes: bytes | Path | None,
    url: str | None,
    key: str | None,
    data: Path | None,
) -> None:
    settings = settings_of(data_dir=data)
    with Client(url or running_url(settings), key or admin_key(settings), timeout=_ANSWER_SECONDS) as client:
        dataset = client.register_dataset(definition, manifest, images, votes=votes)
    counts = ", ".join(f"{count:,} {split}" for split, count in dataset.counts.items())
    typer.echo(f"Data set {dataset.id}: {counts}")


def _streamed(root: Path, names: Sequence[str]) -> Stream:
    """The images as an archive that shows on a terminal how much of it has been sent; each attempt starts anew."""
    total = sum((root / name).stat().st_size for name in names)

    def chunks() -> Iterator[bytes]:
        columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=total)
            yield from zip_of(root, names, lambda size: progress.advance(task, size))

    return Stream("images.zip", chunks)


def _files_below(directory: Path) -> list[str]:
    return sorted(file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file())


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
