"""Problem types of this room."""

from __future__ import annotations

from app.kit.problems import register_problem_type

INVALID_UPLOAD = register_problem_type(
    "invalid_upload",
    422,
    "A file is not what it should be",
    "Correct or leave out every file that `errors` points at; no file was kept.",
)
