"""Who is calling, as routes see it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from app.access.rules import Permission, Role, may
from app.kit.problems import FORBIDDEN, NOT_FOUND, Problem


@dataclass(frozen=True)
class Caller:
    """The API key behind a request. ``model_ids`` limits it to some models; ``None`` means all."""

    key_id: UUID
    role: Role
    model_ids: frozenset[str] | None

    @property
    def actor_ref(self) -> str:
        """How the ledger names the caller."""
        return str(self.key_id)

    def require(self, permission: Permission) -> None:
        """Raises ``forbidden`` unless the role has ``permission``."""
        if not may(self.role, permission):
            raise Problem(FORBIDDEN, f"The role {self.role} may not do this.")

    def sees_model(self, model_id: str) -> bool:
        """Whether the key is meant for this model."""
        return self.model_ids is None or model_id in self.model_ids

    def require_model(self, model_id: str) -> None:
        """Raises ``not_found`` for models the key is not meant for, as for those that do not exist."""
        if not self.sees_model(model_id):
            raise Problem(NOT_FOUND, "There is no such model.")
