"""Who may do what: the one table of the service."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """Role of an API key."""

    CLIENT = "client"
    AUDITOR = "auditor"
    COMPLIANCE = "compliance"
    ADMIN = "admin"


class Permission(StrEnum):
    """What a route asks for."""

    READ = "read"  # every GET but those of the next line
    AUDIT = "audit"  # the history of the whole deployment
    CREATE = "create"  # data sets, uploads, models, factors, insights, retrainings; cancelling these
    EDIT = "edit"  # edits, previews and restorations; cancelling edits and previews
    MOVE_ALIAS = "move_alias"
    MANAGE_KEYS = "manage_keys"


RULES: Mapping[Role, frozenset[Permission]] = {
    Role.CLIENT: frozenset({Permission.READ, Permission.CREATE, Permission.EDIT, Permission.MOVE_ALIAS}),
    Role.AUDITOR: frozenset({Permission.READ, Permission.AUDIT}),
    Role.COMPLIANCE: frozenset({Permission.READ, Permission.AUDIT, Permission.EDIT}),
    Role.ADMIN: frozenset(Permission),
}


def may(role: Role, permission: Permission) -> bool:
    """Whether keys of ``role`` have ``permission``."""
    return permission in RULES[role]
