from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base


class LedgerPayload(Base):
    """What opens the commitment of an entry. Deleting the row erases the payload and leaves every root valid.

    ``payload`` is the canonical JSON that was hashed, kept as text: ``jsonb`` would write numbers anew.
    """

    __tablename__ = "ledger_payloads"
    __table_args__ = (CheckConstraint("octet_length(salt) = 32", name="salt"),)

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    salt: Mapped[bytes]
    payload: Mapped[str] = mapped_column(Text)
