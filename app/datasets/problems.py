"""Problem types of this room."""

from __future__ import annotations

from app.kit.problems import register_problem_type

INVALID_MANIFEST = register_problem_type(
    "invalid_manifest",
    422,
    "The manifest or its images are not valid",
    "Correct every row in `errors` (`errors_total` counts them all) and send everything again; nothing was imported.",
)
INVALID_ARCHIVE = register_problem_type(
    "invalid_archive",
    422,
    "The images are not a plain archive",
    "Send a zip of image files: stored or deflated, relative paths, no links, no passwords, no name twice.",
)
SAMPLE_EXISTS = register_problem_type(
    "sample_exists", 409, "A sample with this key exists", "Choose other keys for the samples in `errors`."
)
UNKNOWN_UPLOAD = register_problem_type(
    "unknown_upload",
    422,
    "An upload is unknown, expired, used or of another kind",
    "Upload the files in `errors` again with `POST /uploads` and name the new ids.",
)
