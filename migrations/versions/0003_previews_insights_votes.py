"""Previews, insights and restorations are jobs; data sets may hold votes on the concept labels of classes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KINDS_BEFORE = ("train", "register", "fit_factors", "edit", "retrain")
NEW_KINDS = ("preview", "insight", "restore")


def upgrade() -> None:
    _allow(KINDS_BEFORE + NEW_KINDS)
    op.add_column("samples", sa.Column("votes", sa.LargeBinary(), nullable=True))
    op.add_column("datasets", sa.Column("vote_rule", postgresql.JSONB(astext_type=sa.Text()), nullable=True))


def downgrade() -> None:
    op.drop_column("datasets", "vote_rule")
    op.drop_column("samples", "votes")
    _allow(KINDS_BEFORE)  # fails while there are jobs of the new kinds: their versions and history would lose them


def _allow(kinds: tuple[str, ...]) -> None:
    name = op.f("ck_jobs_kind")
    op.drop_constraint(name, "jobs", type_="check")
    op.create_check_constraint(name, "jobs", f"kind in ({', '.join(repr(kind) for kind in kinds)})")
