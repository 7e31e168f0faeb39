"""Reports with keys for ids, and without rows."""

from __future__ import annotations

from typing import Any

from app.insights.reports import sample_ids, with_keys, without_rows

RESULT: dict[str, Any] = {
    "target": {"sample_id": 7, "rows": 1},
    "helpful": [{"sample_id": 3, "concept": "loop", "influence": -0.5}, {"sample_id": 9, "concept": "loop"}],
    "harmful": [{"sample_id": 3, "concept": "stroke"}],
    "agreement": {"top": 4, "rank_correlation": None},
    "classes": [{"class": "0", "concepts": [{"concept": "loop"}]}],
}


def test_every_row_is_found() -> None:
    assert sorted(sample_ids(RESULT)) == [3, 3, 7, 9]
    assert list(sample_ids({"target": {"sample_id": None, "rows": 60}})) == []


def test_ids_become_keys_with_links() -> None:
    named, omitted = with_keys(RESULT, {3: "a b?", 7: "seven", 9: "img-9"}, "digits")
    assert omitted == 0
    assert named["helpful"][0] == {
        "sample": "a b?",
        "image": "/datasets/digits/samples/a%20b%3F/image",
        "concept": "loop",
        "influence": -0.5,
    }
    assert named["target"] == {"sample": "seven", "image": "/datasets/digits/samples/seven/image", "rows": 1}
    assert named["agreement"] == RESULT["agreement"]
    assert named["classes"] == RESULT["classes"]


def test_rows_that_are_gone_are_left_out_and_counted() -> None:
    named, omitted = with_keys(RESULT, {9: "img-9"}, "digits")
    assert omitted == 3
    assert named["target"] is None
    assert [row["sample"] for row in named["helpful"]] == ["img-9"]
    assert named["harmful"] == []


def test_a_target_of_many_rows_has_no_key() -> None:
    target = {"target": {"sample_id": None, "rows": 60}}
    assert with_keys(target, {}, "digits") == (target, 0)


def test_rows_can_be_taken_out_for_good() -> None:
    kept, omitted = without_rows({"insights": {"influential_labels": RESULT}}, {3, 7, 1000})
    assert omitted == 3
    assert sorted(sample_ids(kept)) == [9]
    assert "3" not in str(kept["insights"]["influential_labels"]["helpful"])
    assert without_rows(RESULT, set()) == (RESULT, 0)
