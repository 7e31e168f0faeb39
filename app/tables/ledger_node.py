from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base


class LedgerNode(Base):
    """Root of the complete subtree over the ``2**level`` leaves from ``position * 2**level`` on; never changes."""

    __tablename__ = "ledger_nodes"
    __table_args__ = (CheckConstraint("octet_length(hash) = 32", name="hash"),)

    level: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    hash: Mapped[bytes]
