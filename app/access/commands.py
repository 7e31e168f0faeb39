"""``modelmend keys``: for whoever runs the service."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import select

from app.access import keys as access
from app.access.routes import ApiKeyRequest
from app.access.rules import Role
from app.ledger.checkpoints import parse_checkpoint
from app.ledger.publishing import CheckpointPublisher, LedgerContradicted
from app.ledger.rotation import Rotation, rotate
from app.ledger.service import LedgerDamaged
from app.serving.database import operator_sessions
from app.serving.first_key import OPERATOR
from app.tables import ApiKey
from app.terminal import CommandError, Data, settings_of

keys = typer.Typer(
    help="API keys, and the key that signs the history; for whoever runs the service.", no_args_is_help=True
)


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
    with operator_sessions(settings_of(data_dir=data)) as sessions, sessions.begin() as session:
        _, text = access.create_key(session, name=name, role=role, model_ids=wanted.models, actor_ref=OPERATOR)
    typer.echo(text)


@keys.command("list")
def list_keys(data: Data = None) -> None:
    """All keys, without their text."""

    with operator_sessions(settings_of(data_dir=data)) as sessions, sessions() as session:
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

    with operator_sessions(settings_of(data_dir=data)) as sessions, sessions.begin() as session:
        if access.revoke_key(session, key_id, actor_ref=OPERATOR) is None:
            raise CommandError("There is no such key. `modelmend keys list` shows them all.")
    typer.echo("The key is revoked.")


@keys.command("rotate-signing")
def rotate_signing(data: Data = None) -> None:
    """Sign the history with a new key from now on, and print that. A running service needs no restart."""

    settings = settings_of(data_dir=data)
    try:
        with operator_sessions(settings) as sessions:
            rotation = rotate(CheckpointPublisher.of(settings), sessions, actor_ref=OPERATOR)
    except (LedgerContradicted, LedgerDamaged) as error:
        raise CommandError(f"The history cannot be signed, so its key stays. {error}") from error
    typer.echo(str(rotation.key))
    Console(stderr=True).print(_to_holders(rotation), soft_wrap=True, highlight=False)


def _to_holders(rotation: Rotation) -> Text:
    """What those who verify with an old key have to know."""
    size = parse_checkpoint(rotation.note).checkpoint.size
    if not rotation.retired:
        return Text(
            "The private key had been lost, so no old key vouches for this one. The first checkpoint that it signed is "
            f"{size}.\nTell everybody who verifies this history, in a way that they trust, to add it to their keys."
        )
    old = "\n".join(f"  {key}" for key in rotation.retired)
    return Text(
        f"This key signs the history of {rotation.key.name} from checkpoint {size} on. Retired, and no longer on this "
        f"machine:\n{old}\n"
        "Tell everybody who verifies this history to add the new key to the old one, not to replace it: checkpoints "
        "before this one\nare signed by the old key only. They need not take your word: the old key too has signed "
        f"checkpoint {size}, and the history\nunder it records the change (signing_key.rotated)."
    )
