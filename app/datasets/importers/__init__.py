"""Public data sets as they are downloaded, made into what registration takes: definition, manifest, images.

One module per layout, each with a function that reads a directory into an :class:`ImportPlan`. Images are only looked
up; ``app.datasets.importers.archives`` streams them to the service without a copy on disk.
"""

from app.datasets.importers.plan import ImportedRow, ImportPlan, SourceProblem

__all__ = ["ImportPlan", "ImportedRow", "SourceProblem"]
