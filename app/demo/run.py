"""``modelmend demo``: the whole road on real images, as a client of a service of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from app.client import Client
from app.demo.display import Display
from app.demo.picture import draw
from app.demo.plan import Plan
from app.demo.report import outcome_table, write_report
from app.demo.steps import EDITS, PREPARATION, Demonstration, prepare, show_history
from app.serving import RunningService, ServingError, StopSignals, running_service
from app.serving.first_key import read_admin_key
from app.settings import Settings


def run_demo(settings: Settings, *, data_dir: Path | None, report: Path, plan: Plan, console: Console) -> bool:
    """Start a service on a free port, act on it over HTTP only, write ``report`` and a picture beside it.

    Args:
        data_dir: kept afterwards; a temporary one when None.

    Returns:
        Whether every edit succeeded.

    Raises:
        ServingError: the service does not start, or ``data_dir`` holds the demo's model already.
        ClientError: the data set, the training or the factors failed.
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
            demo = _run(client, plan, console)
            show_history(demo)
            console.print(outcome_table(demo.edits))
            seconds = time.monotonic() - started_at
            outcomes = [edit.outcome for edit in demo.edits]
            write_report(report, seconds=seconds, device=demo.device, outcomes=outcomes)
            picture = report.with_name("demo.png")
            draw(picture, demo.edits, device=demo.device)
            console.print(
                f"\nNumbers: {report}   Picture: {picture}   {seconds:.0f} s in all", highlight=False, soft_wrap=True
            )
            if data_dir is not None:
                console.print(f"The data stays: modelmend serve --data {data_dir}", highlight=False, soft_wrap=True)
    return all(outcome.state == "succeeded" for outcome in outcomes)


def _run(client: Client, plan: Plan, console: Console) -> Demonstration:
    with Display(console) as display:
        demo = prepare(client, display, plan)
        for step in (*PREPARATION, *EDITS):
            step(demo)
        return demo


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
