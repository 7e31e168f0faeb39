"""What the ledger costs: appends a second, reading at a million entries, verifying them offline.

``python bench/ledger.py --json PATH [--entries 1000000]`` starts durable servers and the real API on a throw-away
directory. Appends are transactions of the service with one entry each, by several processes at once; beside them, in
the same run, the same transactions with a row of a plain table instead, which is what the ledger is paid for against.

The history that is read is as uneven as real ones, for averages mislead the database's planner: a few models have most
of it, some have not been touched for long, versions grow with time, workers do what keys do not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
from rich.progress import track
from sqlalchemy import text

from app.access.keys import create_key
from app.access.rules import Role
from app.database import APPLICATION_ROLE, make_engine, make_owner_engine, make_sessions
from app.embedded import running_servers
from app.ledger import service as ledger
from app.ledger.kinds import LedgerKind
from app.migrate import upgrade

WRITERS = 3
ROUNDS = 3
TRANSACTIONS = 1500  # of each writer in each round
BATCH = 5000
REQUESTS = 1200
PAGES = 20  # followed from one point of the history backwards
MODELS = [f"model-{number}" for number in range(40)]
RETIRED = [f"model-{number}" for number in range(40, 50)]  # seen in the first fifth of the history only
VERSIONS = 400
ACTORS = [str(UUID(int=number)) for number in range(20)]
ASKED = [LedgerKind.EDIT_ACCEPTED, LedgerKind.RETRAINING_ACCEPTED, LedgerKind.EDIT_CANCELLED, LedgerKind.ALIAS_MOVED]
DONE = [LedgerKind.EDIT_STARTED, LedgerKind.EDIT_SUCCEEDED, LedgerKind.VERSION_PUBLISHED, LedgerKind.EDIT_FAILED]
PAYLOAD: dict[str, Any] = {
    "attempt": 1,
    "operations": ["fix_concept_labels"],
    "counts": {"labels_fixed": 48, "rows_touched": 31},
    "options": {"method": "solve", "tolerance": {"concept_f1": 0.02, "label_f1": 0.02}, "seed": 0},
}

# Beside a model, everything, or a key's models; in each combination, chances make some that match nothing.
FILTERS: list[tuple[str, ...]] = [
    (),
    ("kind",),
    ("version",),
    ("actor",),
    ("since",),
    ("until",),
    ("since", "until"),
    ("kind", "actor"),
    ("kind", "version"),
    ("version", "actor"),
    ("kind", "until"),
    ("kind", "actor", "until"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--entries", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="modelmend-bench-") as directory,
        running_servers(None, None, Path(directory)) as urls,
    ):
        upgrade(urls.database_url)
        figures = appends(urls.database_url)
        keys = fill(urls.database_url, arguments.entries)
        with api(urls.database_url, urls.redis_url, Path(directory) / "data", keys[0]) as client:
            by_filter = history(client, keys[1])
            figures |= summary(by_filter)
            figures |= verification(client, Path(directory))
    figures["entries"] = arguments.entries
    for name, value in figures.items():
        print(f"{name:24} {value:,.1f}" if isinstance(value, float) else f"{name:24} {value:,}")
    print()
    for name, found in sorted(by_filter.items(), key=lambda item: -percentile(item[1], 99)):
        print(f"{name:40} p50 {statistics.median(found):6.1f} ms   p99 {percentile(found, 99):6.1f} ms")
    if arguments.json:
        told = figures | {
            "history_by_filter_p99_ms": {name: percentile(found, 99) for name, found in by_filter.items()}
        }
        arguments.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def appends(database_url: str) -> dict[str, float]:
    """Transactions a second with one entry each, and with one row of a plain table each; medians of rounds."""
    with make_owner_engine(database_url).begin() as owner:
        owner.execute(
            text("CREATE TABLE plain (seq bigserial PRIMARY KEY, at timestamptz DEFAULT now(), payload jsonb)")
        )
        owner.execute(text(f"GRANT ALL ON plain, plain_seq_seq TO {APPLICATION_ROLE}"))
    rates: dict[bool, list[float]] = {False: [], True: []}
    context = multiprocessing.get_context("spawn")
    for _ in track(range(ROUNDS), "appends"):
        for plain, found in rates.items():
            barrier, clock = context.Barrier(WRITERS), context.Queue()
            writers = [
                context.Process(target=_write, args=(database_url, plain, barrier, clock)) for _ in range(WRITERS)
            ]
            for writer in writers:
                writer.start()
            spans = [clock.get() for _ in writers]
            for writer in writers:
                writer.join()
            began, ended = min(span[0] for span in spans), max(span[1] for span in spans)
            found.append(WRITERS * TRANSACTIONS / (ended - began))
    with make_owner_engine(database_url).begin() as owner:
        owner.execute(text("DROP TABLE plain"))
    entries, rows = statistics.median(rates[False]), statistics.median(rates[True])
    return {"append_per_s": entries, "plain_insert_per_s": rows, "append_to_plain": entries / rows}


def _write(database_url: str, plain: bool, barrier: Any, clock: Any) -> None:
    sessions = make_sessions(make_engine(database_url))
    with sessions() as session:
        session.execute(text("SELECT 1"))
    barrier.wait()
    began = time.time()
    for number in range(TRANSACTIONS):
        with sessions.begin() as session:
            if plain:
                session.execute(text("INSERT INTO plain (payload) VALUES (:payload)"), {"payload": json.dumps(PAYLOAD)})
            else:
                ledger.append(
                    session,
                    LedgerKind.EDIT_ACCEPTED,
                    actor_ref=ACTORS[0],
                    model_id=MODELS[number % len(MODELS)],
                    payload=PAYLOAD,
                )
    clock.put((began, time.time()))


def fill(database_url: str, size: int) -> tuple[str, str]:
    """Append until there are ``size`` entries; keys of an auditor of everything, and of retired models alone."""
    engine = make_engine(database_url)
    sessions = make_sessions(engine)
    chance = random.Random(0)  # noqa: S311 (a benchmark's data)
    with sessions.begin() as session:
        made = [
            create_key(session, name="auditor", role=Role.AUDITOR, model_ids=models, actor_ref="operator")[1]
            for models in (None, RETIRED)
        ]
    with sessions() as session:
        there = session.execute(text("SELECT max(seq) FROM ledger_entries")).scalar_one()
    for start in track(range(there, size, BATCH), "filling"):
        with sessions.begin() as session:
            for seq in range(start, min(start + BATCH, size)):
                asked = chance.random() < 0.3
                retired = seq < size / 5 and chance.random() < 0.3
                version = 1 + seq * VERSIONS // size
                kind = chance.choice(ASKED if asked else DONE)
                ledger.append(
                    session,
                    kind,
                    actor_ref=chance.choice(ACTORS) if asked else "worker",
                    dataset_id="data",
                    model_id=chance.choice(RETIRED) if retired else MODELS[int(len(MODELS) * chance.random() ** 3)],
                    job_id=uuid4(),
                    parent_version=version,
                    result_version=version + 1 if kind is LedgerKind.VERSION_PUBLISHED else None,
                    payload=PAYLOAD,
                )
    engine.dispose()
    with make_owner_engine(database_url).connect() as owner:
        owner.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE"))
        # Histories of models are of models that exist.
        owner.execute(text("ALTER TABLE models DISABLE TRIGGER ALL"))
        owner.execute(
            text(
                "INSERT INTO models (id, title, dataset_id, architecture, training, created_by) "
                "SELECT unnest(CAST(:ids AS text[])), 'Model', 'data', '{}', '{}', gen_random_uuid()"
            ),
            {"ids": MODELS + RETIRED},
        )
    return made[0], made[1]


@contextmanager
def api(database_url: str, redis_url: str, data_dir: Path, key: str) -> Iterator[httpx.Client]:
    """The API in a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    environment = os.environ | {
        "MODELMEND_DATABASE_URL": database_url,
        "MODELMEND_REDIS_URL": redis_url,
        "MODELMEND_DATA_DIR": str(data_dir),
    }
    descriptor = listener.fileno()
    command = [sys.executable, "-m", "app.serving.api", str(descriptor)]
    process = subprocess.Popen(command, env=environment, pass_fds=[descriptor])
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{listener.getsockname()[1]}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=600,
        ) as client:
            client.get("/healthz").raise_for_status()
            yield client
    finally:
        process.terminate()
        process.wait()
        listener.close()


def history(client: httpx.Client, limited_key: str) -> dict[str, list[float]]:
    """Milliseconds to a page of the history, by what is asked for; the filters take turns."""
    chance = random.Random(1)  # noqa: S311 (a benchmark's data)
    end = datetime.fromisoformat(client.get("/ledger", params={"page_size": 1}).json()["entries"][0]["at"])
    began = datetime.fromisoformat(client.get("/ledger/entries/1").json()["entries"][0]["entry"]["at"])
    limited = {"Authorization": f"Bearer {limited_key}"}
    times: dict[str, list[float]] = {}
    following: dict[str, dict[str, Any]] = {}

    def ask(name: str, path: str, parameters: dict[str, Any], headers: dict[str, str] | None = None) -> str | None:
        start = time.perf_counter()
        answer = client.get(path, params=parameters, headers=headers)
        times.setdefault(name, []).append((time.perf_counter() - start) * 1000)
        answer.raise_for_status()
        token: str | None = answer.json()["next_page_token"]
        return token

    for number in track(range(REQUESTS // len(FILTERS)), "history"):
        some = began + (end - began) * chance.random()
        wanted = {
            "kind": chance.choice(ASKED + DONE).value,
            "version": chance.randrange(1, VERSIONS),
            "actor": chance.choice([*ACTORS, "worker"]),
            "since": (some - timedelta(seconds=1)).isoformat(),
            "until": some.isoformat(),
        }
        model = chance.choice([MODELS[0], *MODELS, *RETIRED])
        for scope, path, headers in (
            ("everything", "/ledger", None),
            ("model", f"/models/{model}/ledger", None),
            ("retired", "/ledger", limited),
        ):
            for names in FILTERS:
                ask(" ".join((scope, *names)), path, {name: wanted[name] for name in names}, headers)
            if number % PAGES == 0:
                following[scope] = {"path": path, "parameters": {"until": some.isoformat()}, "headers": headers}
            page = following[scope]
            token = ask(f"{scope}, pages back from then", **page)
            page["parameters"] = {"until": page["parameters"]["until"]} | ({"page_token": token} if token else {})
    return times


def summary(by_filter: dict[str, list[float]]) -> dict[str, float]:
    """Over all requests, and of the filter that is slowest."""
    times = [one for found in by_filter.values() for one in found]
    return {
        "history_requests": len(times),
        "history_p50_ms": statistics.median(times),
        "history_p99_ms": percentile(times, 99),
        "history_slowest_filter_p99_ms": max(percentile(found, 99) for found in by_filter.values()),
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """By the nearest rank."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def verification(client: httpx.Client, directory: Path) -> dict[str, float]:
    """Export everything over HTTP, then `modelmend ledger verify` on one core."""
    export = directory / "history.jsonl"
    began = time.perf_counter()
    with client.stream("GET", "/ledger/export") as answer, export.open("wb") as file:
        answer.raise_for_status()
        for part in answer.iter_bytes(1 << 20):
            file.write(part)
    exported = time.perf_counter() - began
    key = client.get("/ledger/keys").json()["keys"][0]["key"]
    command = [str(Path(sys.executable).with_name("modelmend")), "ledger", "verify", str(export), "--key", key]
    seconds, peak = _on_one_core(command)
    return {
        "export_s": exported,
        "export_mib": export.stat().st_size / 2**20,
        "verify_1e6_s": seconds,
        "verify_peak_mib": peak,
    }


def _on_one_core(command: Sequence[str]) -> tuple[float, float]:
    """Seconds and peak resident MiB of a command that must succeed."""
    began = time.perf_counter()
    process = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, {0}))  # noqa: PLW1509 (no threads yet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"verification ended with status {process.returncode}")
    peak: resource.struct_rusage = usage
    return time.perf_counter() - began, peak.ru_maxrss / 1024


if __name__ == "__main__":
    main()
