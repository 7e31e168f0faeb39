"""The command ``modelmend``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from sqlalchemy.exc import OperationalError

from app.access.commands import keys
from app.client import ClientError
from app.datasets.commands import datasets
from app.demo.plan import Plan
from app.embedded import EmbeddedServersError
from app.ledger.archive import ArchiveError
from app.ledger.commands import ledger
from app.ledger.signing import SigningKeyError
from app.migrate import upgrade
from app.serving import RunningRecord, ServingError, StopSignals, running_service
from app.serving.children import inherited_environment
from app.serving.database import reachable_database
from app.serving.first_key import FILE as KEY_FILE
from app.terminal import CommandError, Data, settings_of

cli = typer.Typer(
    name="modelmend",
    help="Edit trained concept bottleneck models in place instead of retraining them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli.add_typer(keys, name="keys")
cli.add_typer(datasets, name="datasets")
cli.add_typer(ledger, name="ledger")

INTERRUPTED = 130  # the shell's number


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default MODELMEND_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, 0 for a free one; default MODELMEND_PORT.")
    ] = None,
    data: Data = None,
) -> None:
    """Run everything: Postgres and Redis (unless configured), the API and one worker. Ctrl-C stops it."""

    settings = settings_of(data_dir=data, host=host, port=port)
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

    settings = settings_of(data_dir=data)
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
    if not run_demo(settings_of(), data_dir=data, report=report, plan=Plan(), console=Console()):
        raise CommandError("Not everything succeeded; what is shown above says what did not.")


@cli.command("demo-data")
def demo_data(directory: Annotated[Path, typer.Argument(help="Made if it is not there.")]) -> None:
    """Write the demo's data set as files, to try the API by hand."""
    from app.demo.files import write_files  # noqa: PLC0415 - scikit-learn takes a second

    for file in write_files(directory, Plan()):
        typer.echo(file)


@cli.command()
def migrate(data: Data = None) -> None:
    """Bring the database to the newest schema. `serve` does so by itself."""

    with reachable_database(settings_of(data_dir=data)) as url:
        upgrade(url)
    typer.echo("The database has the newest schema.")


def main() -> NoReturn:
    """Console entry: one clear sentence and a status other than 0 for what goes wrong."""

    try:
        cli()
    except (CommandError, ClientError, EmbeddedServersError, ServingError, SigningKeyError, ArchiveError) as error:
        _fail(str(error))
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()
        reason_given = reason[0] if reason else "no reason given"
        _fail(f"The database does not answer ({reason_given}). Check MODELMEND_DATABASE_URL.")
    except PermissionError as error:
        _fail(f"{error.filename or 'A file'} is not accessible to this user: {error.strerror}.")
    except ModuleNotFoundError as error:
        if error.name not in {"sklearn", "matplotlib"}:
            raise
        _fail(f"The demo needs {error.name}. Install it with: pip install 'modelmend[demo]'")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)
    sys.exit(1)


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
