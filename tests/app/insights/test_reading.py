"""Insights through the client."""

from __future__ import annotations

from uuid import UUID

from app.client import Insight
from app.edits import outcomes
from app.insights.schemas import InsightBody
from app.tables import Job
from tests.app.service import Service
from tests.app.test_client import client_of


def test_the_client_asks_and_reads(ready: Service) -> None:
    with client_of(ready) as client:
        job = client.look_into("digits-model", 2, ["influential_labels"], top=3, sample="img-13")
        assert (job.kind, job.request["top"], job.request["kinds"]) == ("insight", 3, ["influential_labels"])
        assert client.look_into("digits-model", 2, ["changed_predictions"], compared_with=1).kind == "insight"
        assert client.insights("digits-model", 2) == []
        with ready.sessions.begin() as session:
            row = session.get_one(Job, UUID(str(job.id)))
            row.state, row.attempt = "running", 1
            session.flush()
            target = {"target": {"sample_id": row.request["sample_id"], "rows": 1}}
            report = {"insights": {"influential_labels": target}}
            assert outcomes.finish_without_version(session, ready.store, row.id, 1, report=report)
        (insight,) = client.insights("digits-model", 2)
        assert insight.result["target"]["sample"] == "img-13"
        assert client.insights("digits-model", 2, job_id=str(job.id)) == [insight]
        assert client.insights("digits-model", 2, kind="concept_importance") == []


def test_the_client_has_all_that_the_service_says() -> None:
    assert set(Insight.model_fields) == set(InsightBody.model_fields)
