"""Reports of insight jobs name rows by ids; keys are looked up when they are read. Pure.

So an erasure that deletes a row's key makes what is said of it nobody's, and :func:`without_rows` takes it out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

Report = dict[str, Any]

_ROW = "sample_id"


def sample_ids(value: Any) -> Iterator[int]:
    """Ids of all rows that a report, or a part of it, speaks of."""
    match value:
        case dict():
            if isinstance(value.get(_ROW), int):
                yield value[_ROW]
            for member in value.values():
                yield from sample_ids(member)
        case list():
            for item in value:
                yield from sample_ids(item)


def with_keys(result: Mapping[str, Any], keys: Mapping[int, str], dataset_id: str) -> tuple[Report, int]:
    """A result that names rows by key, with links to their images, and how many entries had no row any more."""

    def named(row: Report) -> Report:
        key = keys[row[_ROW]]
        others = {name: value for name, value in row.items() if name != _ROW}
        return {"sample": key, "image": f"/datasets/{dataset_id}/samples/{quote(key, safe='')}/image", **others}

    return _rewritten(result, keys, named)


def without_rows(report: Mapping[str, Any], gone: Collection[int]) -> tuple[Report, int]:
    """A report, or a part of it, without what it says of some rows, and how many entries that were."""
    kept = set(sample_ids(report)) - set(gone)
    return _rewritten(report, kept, lambda row: row)


def _rewritten(
    value: Mapping[str, Any], known: Collection[int], named: Callable[[Report], Report]
) -> tuple[Report, int]:
    """Entries of lists go when their row is not among the known ones; elsewhere null takes the object's place."""
    omitted = 0

    def rewritten(part: Any) -> Any:
        nonlocal omitted
        match part:
            case dict() if isinstance(part.get(_ROW), int):
                if part[_ROW] not in known:
                    omitted += 1
                    return None
                return named({name: rewritten(member) for name, member in part.items()})
            case dict():
                return {name: rewritten(member) for name, member in part.items()}
            case list():
                return [new for item in part if (new := rewritten(item)) is not None or item is None]
        return part

    return {name: rewritten(member) for name, member in value.items()}, omitted
