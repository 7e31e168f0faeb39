"""The command ``modelmend``."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn
from uuid import UUID

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from app.access import keys as access
from app.access.routes import ApiKeyRequest
from app.access.rules import Role
from app.client import Client, ClientError
from app.demo.plan import Plan
from app.embedded import EmbeddedServersError
from app.migrate import upgrade
from app.serving import RunningRecord, ServingError, StopSignals, running_service
from app.serving.children import inherited_environment
from app.serving.database import operator_sessions, reachable_database
from app.serving.first_key import FILE as KEY_FILE
from app.serving.first_key import OPERATOR, read_admin_key
from app.settings import Settings
from app.tables import ApiKey

cli = typer.Typer(
    name="modelmend",
    help="Edit trained concept bottleneck models in place instead of retraining them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="API keys, for whoever runs the service.", no_args_is_help=True)
datasets = typer.Typer(help="Data sets of a running service.", no_args_is_help=True)
cli.add_typer(keys, name="keys")
cli.add_typer(datasets, name="datasets")

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Directory of all data; default MODELMEND_DATA_DIR, then .modelmend."),
]
INTERRUPTED = 130  # the shell's number


class CommandError(Exception):
    """A command cannot do what it was asked; the message says what to do next."""


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default MODELMEND_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, 0 for a free one; default MODELMEND_PORT.")
    ] = None,
    data: Data = None,
) -> None:
    """Run everything: Postgres and Redis (unless configured), the API and one worker. Ctrl-C stops it."""

    settings = _settings(data_dir=data, host=host, port=port)
    console = Console()
    with StopSignals() as signals:
        try:
            with running_service(settings, tell=_teller(console), hurry=signals.hurry) as service:
                console.print(_welcome(service.url, service.data_dir, service.new_key), soft_wrap=True)
                threading.Event().wait()
        except KeyboardInterrupt:
            console.print("Stopped.")


@cli.command()
def worker(data: Data = None) -> None:
    """Run a worker for an API that runs elsewhere, or beside `modelmend serve`."""

    settings = _settings(data_dir=data)
    record = RunningRecord.read(settings.data_dir)
    found = {} if record is None else {"database_url": record.database_url, "redis_url": record.redis_url}
    given = {name: value for name, value in settings.model_dump(mode="json").items() if value is not None}
    given["data_dir"] = str(settings.data_dir.resolve())
    command = [sys.executable, "-P", "-m", "worker"]
    os.execve(command[0], command, inherited_environment(found | given))  # noqa: S606 - no shell is the point


@cli.command()
def demo(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Keep the data here; default a temporary directory.")
    ] = None,
    report: Annotated[Path, typer.Option(metavar="FILE", help="Where the numbers go; the picture beside it.")] = Path(
        "demo-report.json"
    ),
) -> None:
    """The whole road on real images: register, train, edit in every way beside a retraining, show the history."""
    from app.demo.run import run_demo  # noqa: PLC0415 - scikit-learn and matplotlib take a second

    if not report.parent.is_dir():
        raise CommandError(
            f"There is no directory {report.parent} for the report. Make it, or choose another --report."
        )
    if not run_demo(_settings(), data_dir=data, report=report, plan=Plan(), console=Console()):
        raise CommandError("An edit did not succeed; the table says which.")


@cli.command("demo-data")
def demo_data(directory: Annotated[Path, typer.Argument(help="Made if it is not there.")]) -> None:
    """Write the demo's data set as files, to try the API by hand."""
    from app.demo.files import write_files  # noqa: PLC0415 - scikit-learn takes a second

    for file in write_files(directory, Plan()):
        typer.echo(file)


@cli.command()
def migrate(data: Data = None) -> None:
    """Bring the database to the newest schema. `serve` does so by itself."""

    with reachable_database(_settings(data_dir=data)) as url:
        upgrade(url)
    typer.echo("The database has the newest schema.")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="What the key is for.")],
    role: Annotated[Role, typer.Option(help="What it may do.")],
    model: Annotated[list[str] | None, typer.Option(help="Limit it to this model; may be repeated.")] = None,
    data: Data = None,
) -> None:
    """Make a key and print its text, which cannot be shown again."""

    try:
        wanted = ApiKeyRequest(name=name, role=role.value, models=model or None)
    except ValidationError as error:
        places = "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())
        raise CommandError(f"The key cannot be made: {places}.") from error
    with operator_sessions(_settings(data_dir=data)) as sessions, sessions.begin() as session:
        _, text = access.create_key(session, name=name, role=role, model_ids=wanted.models, actor_ref=OPERATOR)
    typer.echo(text)


@keys.command("list")
def list_keys(data: Data = None) -> None:
    """All keys, without their text."""

    with operator_sessions(_settings(data_dir=data)) as sessions, sessions() as session:
        rows = list(session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("id", no_wrap=True)
    for column in ("role", "name", "models", "last used", "revoked"):
        table.add_column(column, overflow="fold")
    for row in rows:
        models = "all" if row.model_ids is None else ", ".join(row.model_ids)
        days = ("" if at is None else f"{at:%Y-%m-%d}" for at in (row.last_used_at, row.revoked_at))
        table.add_row(*(Text(cell) for cell in (str(row.id), row.role, row.name, models, *days)))
    Console().print(table)


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[UUID, typer.Argument(help="As `modelmend keys list` shows it.")], data: Data = None
) -> None:
    """End a key's life, with the next request."""

    with operator_sessions(_settings(data_dir=data)) as sessions, sessions.begin() as session:
        if access.revoke_key(session, key_id, actor_ref=OPERATOR) is None:
            raise CommandError("There is no such key. `modelmend keys list` shows them all.")
    typer.echo("The key is revoked.")


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

    settings = _settings(data_dir=data)
    try:
        wanted = json.loads(_existing(definition).read_bytes())
    except ValueError as error:
        raise CommandError(f"{definition} is not JSON: {error}.") from error
    pictures = sorted(file for file in images.iterdir() if file.is_file()) if images.is_dir() else _existing(images)
    with Client(url or _running_url(settings), key or _admin_key(settings)) as client:
        dataset = client.register_dataset(wanted, _existing(manifest), pictures)
    counts = ", ".join(f"{count:,} {split}" for split, count in dataset.counts.items())
    typer.echo(f"Data set {dataset.id}: {counts}")


def main() -> NoReturn:
    """Console entry: one clear sentence and a status other than 0 for what goes wrong."""

    try:
        cli()
    except (CommandError, ClientError, EmbeddedServersError, ServingError) as error:
        _fail(str(error))
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()
        reason_given = reason[0] if reason else "no reason given"
        _fail(f"The database does not answer ({reason_given}). Check MODELMEND_DATABASE_URL.")
    except PermissionError as error:
        _fail(f"{error.filename or 'A file'} is not accessible to this user: {error.strerror}.")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)
    sys.exit(1)


def _settings(**given: Any) -> Settings:
    """Settings of the environment, overruled by options that were given."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        places = "; ".join(f"MODELMEND_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors())
        raise CommandError(f"The configuration is not valid: {places}.") from error


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise CommandError(f"There is no file {path}.")
    return path


def _running_url(settings: Settings) -> str:

    record = RunningRecord.read(settings.data_dir)
    if record is None:
        raise CommandError(f"No service runs on {settings.data_dir}. Start `modelmend serve`, or name one with --url.")
    return record.url


def _admin_key(settings: Settings) -> str:

    text = read_admin_key(settings.data_dir)
    if text is None:
        raise CommandError(f"There is no key in {settings.data_dir}. Name one with --key, or set MODELMEND_KEY.")
    return text


def _teller(console: Console) -> Callable[[str], None]:
    def tell(sentence: str) -> None:
        console.print(Text(sentence, style="dim"), soft_wrap=True)

    return tell


def _welcome(url: str, data_dir: Path, new_key: str | None) -> Text:

    key: tuple[str | tuple[str, str], ...]
    key_file = data_dir / KEY_FILE
    if new_key:
        key = ((new_key, "bold"), f"   an administrator's, shown once; kept in {key_file}")
    elif key_file.exists():
        key = (f"in {key_file}",)
    else:
        key = ("made earlier; `modelmend keys create` makes another",)
    return Text.assemble(
        (f"\nmodelmend {version('modelmend')}", "bold"),
        "\n  API   ",
        (url, "bold"),
        f"   every route: {url}/docs",
        "\n  key   ",
        *key,
        f"\n  data  {data_dir}   logs in {data_dir / 'logs'}",
        "\nCtrl-C stops everything.\n",
    )
