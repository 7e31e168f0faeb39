"""``modelmend demo``: the whole road on real images, as a client of a service of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from app.client import Client
from app.demo.audit import LedgerOutcome
from app.demo.display import Display
from app.demo.picture import draw
from app.demo.plan import Plan
from app.demo.report import outcome_table, write_report
from app.demo.steps import EDITS, PREPARATION, Demonstration, prepare, show_history, verify_history
from app.ledger.checkpoints import VerifierKey
from app.ledger.signing import KeyDirectory
from app.serving import RunningService, ServingError, StopSignals, running_service
from app.serving.first_key import read_admin_key
from app.settings import Settings


def run_demo(settings: Settings, *, data_dir: Path | None, report: Path, plan: Plan, console: Console) -> bool:
    """Start a service on a free port, act on it over HTTP only, write ``report`` and a picture beside it.

    Args:
        data_dir: kept afterwards; a temporary one when None.

    Returns:
        Whether every edit succeeded, the history is as it was signed, and tampering with a copy of it was found.

    Raises:
        ServingError: the service does not start, or ``data_dir`` holds the demo's model already.
        ClientError: the data set, the training, the factors or the export of the history failed.
        SigningKeyError: the verifier keys of the history cannot be read.
    """
    started_at = time.monotonic()
    with StopSignals() as signals, _service(settings, data_dir, signals, console) as service:
        key = read_admin_key(service.data_dir)
        if key is None:
            raise ServingError(
                "The database has an administrator's key already, and the demo does not know it. Unset "
                "MODELMEND_DATABASE_URL, so that the demo starts a database of its own."
            )
        with Client(service.url, key) as client:
            if any(model.id == plan.model_id for model in client.models()):
                raise ServingError(
                    f"{service.data_dir} holds a model “{plan.model_id}” already. Choose an empty directory, or look "
                    f"at this one with: modelmend serve --data {service.data_dir}"
                )
            # The operator's own channel: an export that brings its keys along could bring a forger's.
            signing = KeyDirectory(settings.signing_dir or service.data_dir / "signing")
            keys = [published.key for published in signing.published()]
            directory = service.data_dir / "demo"
            directory.mkdir(mode=0o700, exist_ok=True)
            demo, ledger = _run(client, plan, console, directory, keys)
            show_history(demo)
            console.print(outcome_table(demo.edits))
            seconds = time.monotonic() - started_at
            outcomes = [edit.outcome for edit in demo.edits]
            write_report(report, seconds=seconds, device=demo.device, outcomes=outcomes, ledger=ledger)
            picture = report.with_name("demo.png")
            draw(picture, demo.edits, device=demo.device)
            console.print(
                f"\nNumbers: {report}   Picture: {picture}   {seconds:.0f} s in all", highlight=False, soft_wrap=True
            )
            if data_dir is not None:
                console.print(f"The data stays: modelmend serve --data {data_dir}", highlight=False, soft_wrap=True)
    return ledger.proved and all(outcome.state == "succeeded" for outcome in outcomes)


def _run(
    client: Client, plan: Plan, console: Console, directory: Path, keys: list[VerifierKey]
) -> tuple[Demonstration, LedgerOutcome]:
    with Display(console) as display:
        demo = prepare(client, display, plan)
        for step in (*PREPARATION, *EDITS):
            step(demo)
        return demo, verify_history(demo, directory, keys)


@contextmanager
def _service(
    settings: Settings, data_dir: Path | None, signals: StopSignals, console: Console
) -> Iterator[RunningService]:
    def tell(sentence: str) -> None:
        console.print(f"[dim]{sentence}", highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="modelmend-demo-") as temporary:
        own = settings.model_copy(update={"data_dir": data_dir or Path(temporary), "host": "127.0.0.1", "port": 0})
        with running_service(own, durable=data_dir is not None, tell=tell, hurry=signals.hurry) as service:
            yield service
