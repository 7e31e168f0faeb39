"""Which texts may be names: of concepts and classes, keys of samples, references of subjects."""

from __future__ import annotations

import re

# Control characters and line separators, which Postgres (NUL), logs and tables in terminals cannot carry safely, and
# halves of surrogate pairs, which UTF-8 cannot.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
MAX_KEY = 200
MAX_SUBJECT = 200


def is_plain(text: str, max_length: int) -> bool:
    """Whether ``text`` has 1 to ``max_length`` characters, no control characters, and no blank at either end."""
    return 0 < len(text) <= max_length and text == text.strip() and not _UNPRINTABLE.search(text)


def is_key(text: str) -> bool:
    """Whether ``text`` can be the key of a sample: plain, and one segment of a URL's path."""
    return is_plain(text, MAX_KEY) and "/" not in text and text not in (".", "..")


def is_subject(text: str) -> bool:
    """Whether ``text`` can be a subject's reference."""
    return is_plain(text, MAX_SUBJECT)
