"""What a client sends to register data, and what a registration leaves."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from httpx import Response
from sqlalchemy import func, select

from app.tables import Base
from tests.app.artifacts.files import all_files
from tests.app.datasets.images import encoded
from tests.app.service import Service

CONCEPTS = ("round", "dark, very")
CLASSES = ("disc", "box")
FilePart = tuple[str, tuple[str | None, bytes]]


def rows_of(count: int = 6) -> list[dict[str, Any]]:
    """Good rows over all splits and classes; every second has a subject."""
    return [
        {
            "key": f"img-{number}",
            "split": ("train", "train", "calibration", "test")[number % 4],
            "class": CLASSES[number % 2],
            "image": f"images/{number}.png",
            "subject": f"patient {number // 4}" if number % 2 else None,
            "round": number % 2,
            "dark, very": (0, 1, None)[number % 3],
        }
        for number in range(count)
    ]


@dataclass
class Submission:
    """A good one, unless a test changes it."""

    rows: list[dict[str, Any]] = field(default_factory=rows_of)
    images: dict[str, bytes] = field(default_factory=dict)
    definition: dict[str, Any] = field(
        default_factory=lambda: {
            "id": "shapes",
            "title": "Shapes",
            "concepts": list(CONCEPTS),
            "classes": list(CLASSES),
        }
    )

    def __post_init__(self) -> None:
        if not self.images:
            self.images = {row["image"]: encoded(seed) for seed, row in enumerate(self.rows)}

    def csv(self) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self.rows[0]))
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue().encode()

    def parquet(self) -> bytes:
        file = io.BytesIO()
        pq.write_table(pa.table({name: [row[name] for row in self.rows] for name in self.rows[0]}), file)
        return file.getvalue()

    def zip(self) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in self.images.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        return file.getvalue()

    def parts(
        self, *, manifest: bytes | None = None, archive: bytes | None = None, many_files: bool = False
    ) -> list[FilePart]:
        """The parts of the request; the images as one zip, or each as a file."""
        images: Mapping[str, bytes] = self.images if many_files else {"images.zip": archive or self.zip()}
        return [
            ("definition", (None, json.dumps(self.definition).encode())),
            ("manifest", ("manifest", self.csv() if manifest is None else manifest)),
            *(("images", (name, data)) for name, data in images.items()),
        ]


def register(service: Service, parts: Sequence[FilePart] | None = None, **arguments: Any) -> Response:
    """POST /datasets; a good submission if none is given."""
    return service.post("/datasets", files=list(parts or Submission().parts()), **arguments)


def state(service: Service) -> dict[str, Any]:
    """Number of rows of every table, but those about keys, and all files: equal before and after means unchanged."""
    with service.sessions() as session:
        counts = {
            name: session.scalar(select(func.count()).select_from(table))
            for name, table in Base.metadata.tables.items()
            if name != "api_keys"
        }
    return {**counts, "files": all_files(service.services.settings.data_dir)}
