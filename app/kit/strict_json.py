"""JSON as RFC 8259 means it: Python's parser also takes NaN and Infinity, and strings that Postgres cannot hold."""

from __future__ import annotations

import json
from typing import Any, NoReturn


class NotStrictJson(ValueError):
    """The text is not JSON, or JSON that cannot be stored."""


def parse(text: bytes) -> Any:
    """The value of ``text`` in UTF-8.

    Raises:
        NotStrictJson: for NaN, infinities, numbers too long to read, nesting too deep, a name twice in one object, and
            for strings with NUL or half a surrogate pair (Postgres refuses both).
    """
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_members)
        again = json.dumps(value, ensure_ascii=False, allow_nan=False)  # 1e999 becomes infinite without parse_constant
        again.encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise NotStrictJson("not JSON") from error
    if "\\u0000" in again and _holds_nul(value):
        raise NotStrictJson("a string holds NUL")
    return value


def _refuse(_: str) -> NoReturn:
    raise NotStrictJson("NaN and Infinity are not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):  # the parser would keep the last one, and forget what the others asked for
        raise NotStrictJson("a name comes twice in one object")
    return members


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_holds_nul, value))
