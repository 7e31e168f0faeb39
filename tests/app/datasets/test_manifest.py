from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.datasets.manifest import Manifest, read_manifest
from app.datasets.report import MAX_LISTED, Report
from app.datasets.schemas import DatasetDefinition
from app.kit.problems import Problem

DEFINITION = DatasetDefinition(title="Shapes", concepts=["round", "dark, very"], classes=["disc", "box"])
HEADER = ["key", "split", "class", "image", "round", "dark, very"]
GOOD = ["a", "train", "disc", "a.png", "0", "1"]


def read(data: bytes, *, max_rows: int = 100, definition: DatasetDefinition = DEFINITION) -> tuple[Manifest, Report]:
    report = Report()
    return read_manifest(io.BytesIO(data), definition, max_rows=max_rows, report=report), report


def errors(data: bytes) -> list[dict[str, Any]]:
    return read(data)[1].listed()


def as_csv(*rows: Sequence[str], header: Sequence[str] = HEADER) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    return text.getvalue().encode()


def as_parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def parquet_columns(**changed: Any) -> dict[str, Any]:
    return {
        "key": ["a", "b", "c"],
        "split": ["train", "calibration", "test"],
        "class": ["disc", "box", "disc"],
        "image": ["a.png", "b.png", "c.png"],
        "round": [0, 1, 1],
        "dark, very": [1, 0, 1],
        **changed,
    }


def one(column: str, value: str) -> bytes:
    """A good manifest but for one cell of its second row."""
    row = ["b", "test", "box", "b.png", "1", "0"]
    row[HEADER.index(column)] = value
    return as_csv(GOOD, row)


def test_csv_is_read() -> None:
    manifest, report = read(
        as_csv(GOOD, ["b", "calibration", "box", "b.png", "", "unknown"], ["c", "test", "box", "a.png", "1", "0"])
    )
    assert report.total == 0
    assert manifest.keys == ["a", "b", "c"]
    assert manifest.splits.tolist() == [0, 1, 2]
    assert manifest.classes.tolist() == [0, 1, 1]
    assert manifest.images == ["a.png", "b.png", "a.png"]
    assert manifest.subjects == [None, None, None]
    assert manifest.concepts.tolist() == [[0, 1], [-1, -1], [1, 0]]


def test_order_of_columns_byte_order_mark_and_blank_lines_do_not_matter() -> None:
    header = ["dark, very", "subject", "image", "round", "key", "class", "split"]
    data = b"\xef\xbb\xbf" + as_csv(["1", "s-1", "a.png", "0", "a", "disc", "train"], [], header=header) + b"\n"
    manifest, report = read(data)
    assert report.total == 0
    assert (manifest.keys, manifest.subjects, manifest.concepts.tolist()) == (["a"], ["s-1"], [[0, 1]])


def test_row_numbers_count_blank_lines_as_an_editor_does() -> None:
    assert errors(as_csv(GOOD, [], ["b", "train", "cone", "b.png", "0", "1"])) == [
        {"row": 3, "column": "class", "code": "unknown_class"}
    ]


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("key", "", "invalid_key"),
        ("key", "a/b", "invalid_key"),
        ("key", "..", "invalid_key"),
        ("key", " b", "invalid_key"),
        ("key", "b\x00", "invalid_key"),
        ("key", "b\nc", "invalid_key"),
        ("key", "b" * 201, "invalid_key"),
        ("key", "a", "duplicate_key"),
        ("split", "validation", "unknown_split"),
        ("split", "", "unknown_split"),
        ("split", "Train", "unknown_split"),
        ("class", "cone", "unknown_class"),
        ("class", "", "unknown_class"),
        ("image", "", "missing_image"),
        ("round", "nan", "label_not_0_1_unknown"),
        ("round", "NaN", "label_not_0_1_unknown"),
        ("round", "2", "label_not_0_1_unknown"),
        ("round", "-1", "label_not_0_1_unknown"),
        ("round", "0.5", "label_not_0_1_unknown"),
        ("round", " 1", "label_not_0_1_unknown"),
        ("round", "true", "label_not_0_1_unknown"),
        ("dark, very", "null", "label_not_0_1_unknown"),
    ],
)
def test_a_bad_cell_is_reported_where_it_is(column: str, value: str, code: str) -> None:
    assert errors(one(column, value)) == [{"row": 2, "column": column, "code": code}]


@pytest.mark.parametrize("subject", ["x" * 201, " s", "s\x07"])
def test_a_bad_subject_is_reported(subject: str) -> None:
    data = as_csv([*GOOD, subject], header=[*HEADER, "subject"])
    assert errors(data) == [{"row": 1, "column": "subject", "code": "invalid_subject"}]


@pytest.mark.parametrize("row", [GOOD[:-1], [*GOOD, "1"], ["a"]])
def test_a_row_with_another_number_of_cells_is_reported(row: list[str]) -> None:
    assert errors(as_csv(row, ["b", *GOOD[1:]])) == [{"row": 1, "column": None, "code": "wrong_concept_count"}]


def test_every_bad_cell_of_every_bad_row_is_reported_in_order() -> None:
    data = as_csv(["", "x", "y", "", "2", "3"], GOOD, ["a", "train", "disc", "a.png", "0", "9"])
    assert [(error["row"], error["code"]) for error in errors(data)] == [
        (1, "invalid_key"),
        (1, "unknown_split"),
        (1, "unknown_class"),
        (1, "missing_image"),
        (1, "label_not_0_1_unknown"),
        (1, "label_not_0_1_unknown"),
        (3, "duplicate_key"),
        (3, "label_not_0_1_unknown"),
    ]


def test_no_value_of_a_bad_row_is_repeated() -> None:
    secret = "Jane-Doe-1970"
    bad = as_csv(*[[secret + "/"] * 7] * 3, header=[*HEADER, "subject"])
    unknown_column = as_csv(GOOD, header=[*HEADER[:-1], secret])
    for data in (bad, unknown_column, secret.encode(), one("key", secret + "\n")):
        found = errors(data)
        assert found
        assert secret not in str(found)


def test_the_list_is_capped_at_the_first_thousand_and_all_are_counted() -> None:
    rows = [[f"k{number}", "train", "disc", "a.png", "7", "8"] for number in range(30_000)]
    manifest, report = read(as_csv(*rows), max_rows=30_000)
    assert report.total == 60_000
    assert len(manifest) == 30_000
    listed = report.listed()
    assert len(listed) == MAX_LISTED
    assert [error["row"] for error in listed] == [row for row in range(1, 501) for _ in range(2)]


def test_headers_are_reported_whole() -> None:
    header = ["key", "class", "Round", "key", "dark, very"]
    assert errors(as_csv(GOOD[:5], header=header)) == [
        {"row": None, "column": "image", "code": "missing_column"},
        {"row": None, "column": "round", "code": "missing_column"},
        {"row": None, "column": "split", "code": "missing_column"},
        {"row": None, "column": None, "code": "unknown_column", "position": 3},
        {"row": None, "column": "key", "code": "duplicate_column"},
    ]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_manifest"),
        (as_csv(), "empty_manifest"),
        (as_csv(GOOD).replace(b",", b";"), "not_comma_separated"),
        (as_csv(GOOD).replace(b",", b"\t").replace(b'"dark\t very"', b"x"), "not_comma_separated"),
        (as_csv(GOOD) + "é,".encode("latin-1"), "not_utf8"),
        ("key,split".encode("utf-16"), "not_utf8"),
        (as_csv(GOOD) + b'b,"train', "malformed_csv"),
        (as_csv(GOOD) + b"x" * (5 << 20), "malformed_csv"),
        (as_csv(GOOD) + b"x" * 200_000 + b",", "malformed_csv"),
        (b"PAR1", "malformed_parquet"),
        (b"PAR1" + bytes(1000) + b"PAR1", "malformed_parquet"),
        (as_parquet(**parquet_columns())[:-9], "malformed_parquet"),
        (
            as_parquet(**parquet_columns(key=[], split=[], image=[], round=[], **{"class": [], "dark, very": []})),
            "empty_manifest",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_are_no_manifest_are_reported(data: bytes, code: str) -> None:
    assert [error["code"] for error in errors(data)] == [code]


def test_too_many_rows_are_too_large_in_both_formats() -> None:
    rows = [[f"k{number}", *GOOD[1:]] for number in range(3)]
    for data in (as_csv(*rows), as_parquet(**parquet_columns())):
        assert read(data, max_rows=3)[1].total == 0
        with pytest.raises(Problem) as caught:
            read(data, max_rows=2)
        assert caught.value.type.code == "payload_too_large"


@pytest.mark.parametrize(
    ("column", "codes"),
    [
        (pa.array([0, 1, None], pa.int64()), [0, 1, -1]),
        (pa.array([0, 1, None], pa.uint8()), [0, 1, -1]),
        (pa.array([0.0, 1.0, math.nan], pa.float64()), [0, 1, -1]),
        (pa.array([0.0, None, math.nan], pa.float32()), [0, -1, -1]),
        (pa.array([False, True, None]), [0, 1, -1]),
        (pa.array(["0", "1", "unknown"]), [0, 1, -1]),
        (pa.array(["0", "", None], pa.large_string()), [0, -1, -1]),
        (pa.array(["0", "1", None]).dictionary_encode(), [0, 1, -1]),
        (pa.nulls(3), [-1, -1, -1]),
    ],
    ids=lambda value: str(value.type) if hasattr(value, "type") else "",
)
def test_parquet_labels_of_every_type(column: Any, codes: list[int]) -> None:
    manifest, report = read(as_parquet(**parquet_columns(round=column)))
    assert report.listed() == []
    assert manifest.concepts[:, 0].tolist() == codes


@pytest.mark.parametrize("value", [2, -1, 0.5, math.inf, "nan", "NaN", "1.0", "yes"])
def test_parquet_labels_that_are_none_are_reported(value: Any) -> None:
    good = "1" if isinstance(value, str) else type(value)(1)
    assert errors(as_parquet(**parquet_columns(round=[good, value, good]))) == [
        {"row": 2, "column": "round", "code": "label_not_0_1_unknown"}
    ]


def test_parquet_keys_and_classes_may_be_numbers_and_categories() -> None:
    definition = DatasetDefinition(title="Digits", concepts=["round", "dark, very"], classes=["0", "1"])
    columns = parquet_columns(
        key=[1, 2, 3], subject=[None, 7, 7], split=pa.array(["train", "test", "test"]).dictionary_encode()
    )
    manifest, report = read(as_parquet(**{**columns, "class": [0, 1, 1]}), definition=definition)
    assert report.total == 0
    assert manifest.keys == ["1", "2", "3"]
    assert manifest.classes.tolist() == [0, 1, 1]
    assert manifest.subjects == [None, "7", "7"]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("round", [[1], [0], [1]]),
        ("round", [b"1", b"0", b"1"]),
        ("key", [1.5, 2.5, 3.5]),
        ("class", [True, False, True]),
    ],
)
def test_parquet_types_that_cannot_hold_a_column_are_reported(name: str, column: Any) -> None:
    assert errors(as_parquet(**parquet_columns(**{name: column}))) == [
        {"row": None, "column": name, "code": "unsupported_column_type"}
    ]


def test_parquet_nulls_where_a_value_must_be_are_reported() -> None:
    columns = parquet_columns(key=["a", None, "c"], split=["train", None, "test"], image=["a", None, "c"])
    assert [(error["row"], error["code"]) for error in errors(as_parquet(**columns))] == [
        (2, "invalid_key"),
        (2, "unknown_split"),
        (2, "missing_image"),
    ]


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=8
).filter(lambda name: name == name.strip() and "/" not in name and name not in {".", ".."})
ROWS = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from(["train", "calibration", "test"]),
        st.sampled_from(DEFINITION.classes),
        NAMES,
        st.one_of(st.none(), NAMES),
        st.lists(st.sampled_from([0, 1, -1]), min_size=2, max_size=2),
    ),
    unique_by=lambda row: row[0],
    min_size=1,
    max_size=20,
)


@given(ROWS, st.permutations([*HEADER, "subject"]))
def test_csv_and_parquet_of_the_same_rows_are_the_same_manifest(rows: list[Any], order: list[str]) -> None:
    cells = [
        {
            "key": key,
            "split": split,
            "class": class_name,
            "image": image,
            "subject": subject,
            "round": None if labels[0] < 0 else labels[0],
            "dark, very": None if labels[1] < 0 else labels[1],
        }
        for key, split, class_name, image, subject, labels in rows
    ]
    text = [["" if row[name] is None else str(row[name]) for name in order] for row in cells]
    columns = {name: [row[name] for row in cells] for name in order}
    for data in (as_csv(*text, header=order), as_parquet(**columns)):
        manifest, report = read(data)
        assert report.listed() == []
        assert manifest.keys == [row[0] for row in rows]
        assert manifest.images == [row[3] for row in rows]
        assert manifest.subjects == [row[4] for row in rows]
        assert np.array_equal(manifest.concepts, np.array([row[5] for row in rows]))


@given(st.binary(max_size=300), st.sampled_from([b"", as_csv(), as_csv(GOOD), as_parquet(**parquet_columns())]))
def test_no_bytes_are_read_without_rows_or_a_report(tail: bytes, start: bytes) -> None:
    manifest, report = read(start + tail)
    assert len(manifest) or report.total
