"""``modelmend datasets``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from app.client import Client
from app.terminal import CommandError, Data, admin_key, existing_file, running_url, settings_of

datasets = typer.Typer(help="Data sets of a running service.", no_args_is_help=True)


@datasets.command("import")
def import_dataset(
    *,
    definition: Annotated[Path, typer.Option(metavar="FILE", help="JSON: id, title, concepts, classes.")],
    manifest: Annotated[Path, typer.Option(metavar="FILE", help="CSV or Parquet.")],
    images: Annotated[Path, typer.Option(metavar="PATH", help="A zip, or a directory of images.")],
    url: Annotated[
        str | None, typer.Option(envvar="MODELMEND_URL", help="The service; default the one that runs on --data.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar="MODELMEND_KEY", help="API key; default admin.key in --data.")
    ] = None,
    data: Data = None,
) -> None:
    """Register a data set, all or nothing."""

    settings = settings_of(data_dir=data)
    try:
        wanted = json.loads(existing_file(definition).read_bytes())
    except ValueError as error:
        raise CommandError(f"{definition} is not JSON: {error}.") from error
    pictures = sorted(file for file in images.iterdir() if file.is_file()) if images.is_dir() else existing_file(images)
    with Client(url or running_url(settings), key or admin_key(settings)) as client:
        dataset = client.register_dataset(wanted, existing_file(manifest), pictures)
    counts = ", ".join(f"{count:,} {split}" for split, count in dataset.counts.items())
    typer.echo(f"Data set {dataset.id}: {counts}")
