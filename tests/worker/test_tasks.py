from __future__ import annotations

import json

from worker.tasks import BaseVersion, Result, Task

VERSION = BaseVersion(3, ["loop"], ["one"], "a" * 64, "b" * 64, None, 2, {"concept_f1": 0.5})


def test_tasks_and_results_survive_json() -> None:
    task = Task(
        kind="retrain",
        model_id="digits",
        dataset_id="glyphs",
        architecture={"name": "small_conv"},
        training={"epochs": 3},
        concepts=["loop"],
        classes=["one"],
        snapshot_digest="c" * 64,
        seed=7,
        base=VERSION,
        changes={"fixes": [[1, 0, -1]]},
        compared={"base": VERSION, "edited": VERSION, "changes": {}, "report": {"x": [1]}},
    )
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task
    result = Result(concepts=["loop"], publishes=True, factors_version="this", report={"a": {"b": None}})
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result
