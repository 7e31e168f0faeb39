"""Receipts and exports of a model that were changed."""

from __future__ import annotations

import pytest

from tests.app.ledger.logs import signing_key
from tests.app.ledger.named import (
    COLUMNS,
    LOG,
    assert_named,
    change,
    found_in,
    rewritten,
)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_receipt_with_a_changed_entry(column: str) -> None:
    log = LOG.copy()
    change(log, 6, column)
    receipt = log.receipt(5, 6)
    expected = "not the one committed to" if column == "payload_commitment" else "Entry 6 is not what the checkpoint's"
    assert_named(found_in([receipt]), 6, 6, expected)


def test_a_receipt_with_a_changed_proof() -> None:
    for place in range(len(LOG.receipt(6)["entries"][0]["inclusion_proof"])):
        receipt = LOG.receipt(5, 6)
        receipt["entries"][1]["inclusion_proof"][place] = "00" * 32
        assert_named(found_in([receipt]), 6, 6, "Entry 6 is not what the checkpoint's tree of 21 entries holds")
    for proof in (None, ["00"], [1], ["AB" * 32]):
        receipt = LOG.receipt(6)
        receipt["entries"][0]["inclusion_proof"] = proof
        assert_named(found_in([receipt]), 6, 6, "Entry 6 has a proof that is not a list of hashes")


def test_a_receipt_with_another_number() -> None:
    receipt = LOG.receipt(6)
    receipt["entries"][0]["entry"]["seq"] = 7
    assert_named(found_in([receipt]), 7, 7, "is not what the checkpoint's tree")
    receipt["entries"][0]["entry"]["seq"] = 22
    assert_named(found_in([receipt]), 22, 22, "is not what the checkpoint's tree")


def test_a_receipt_with_a_changed_checkpoint() -> None:
    for note in (LOG.note(None, signing_key(2)), LOG.note().replace("\n21\n", "\n20\n"), None):
        receipt = LOG.receipt(6) | {"checkpoint": note}
        assert_named(found_in([receipt]), None, None, "The checkpoint is not")
    receipt = LOG.receipt(6) | {"checkpoint": rewritten(2).note()}
    assert_named(found_in([receipt]), 6, 6, "leads to another root")


def test_a_receipt_with_an_entry_of_another_form() -> None:
    receipt = LOG.receipt(6)
    receipt["entries"].append({"entry": {}})
    assert_named(found_in([receipt]), None, None, "Entry no. 2 of the receipt is not")
    receipt = LOG.receipt(6)
    receipt["entries"][0]["entry"] = []
    assert_named(found_in([receipt]), None, None, "Entry no. 1 of the receipt is not an entry")


def test_a_models_history_that_was_changed() -> None:
    lines = LOG.model_export()  # entries 1, 4, 7, 10, 11, 13, ...
    changed = [dict(line) for line in lines]
    changed[2]["entry"] = changed[2]["entry"] | {"kind": "edit.failed"}
    assert_named(found_in(changed), 4, 4, "Entry 4 is not what the checkpoint's")
    assert_named(found_in([lines[0], lines[2], lines[1]]), 1, 4, "out of order")
    assert_named(found_in([lines[0], lines[2], lines[2]]), 4, 4, "out of order")
    assert_named(found_in([*lines[:2], {"entry": {}}]), None, None, "Line 3, after entry 1, is not")
    foreign = [lines[0], *LOG.receipt(2)["entries"]]
    assert_named(found_in(foreign), 2, 2, "Entry 2 is not one of the model digits-model")
