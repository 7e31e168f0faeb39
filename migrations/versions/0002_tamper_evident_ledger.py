"""The ledger becomes a Merkle tree that the service can only append to, under a role of its own.

Entries of the plain ledger before it are taken over in their order: numbered without gaps, committed to, hashed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from app.database import APPLICATION_ROLE
from app.ledger import commitments, merkle

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# What the service may do with each table; nothing else.
RIGHTS = {
    "alembic_version": "SELECT",
    "ledger_entries": "SELECT, INSERT",
    "ledger_nodes": "SELECT, INSERT",
    "ledger_payloads": "SELECT, INSERT, DELETE",
} | dict.fromkeys(
    (
        "aliases",
        "api_keys",
        "datasets",
        "idempotency_records",
        "job_events",
        "jobs",
        "models",
        "samples",
        "subjects",
        "uploads",
        "versions",
    ),
    "SELECT, INSERT, UPDATE, DELETE",
)


def upgrade() -> None:
    op.rename_table("ledger_entries", "plain_ledger_entries")
    op.execute("ALTER TABLE plain_ledger_entries RENAME CONSTRAINT pk_ledger_entries TO pk_plain_ledger_entries")
    _create_tables()
    _take_over(op.get_bind())
    op.drop_table("plain_ledger_entries")
    for table in ("ledger_entries", "ledger_nodes"):
        _refuse(table, "UPDATE OR DELETE OR TRUNCATE")
    _refuse("ledger_payloads", "UPDATE OR TRUNCATE")
    _create_tip()
    _grant()


def _create_tables() -> None:
    op.create_table(
        "ledger_entries",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("actor_ref", sa.String(), nullable=False),
        sa.Column("subject_ref", sa.String(), nullable=True),
        sa.Column("dataset_id", sa.String(), nullable=True),
        sa.Column("model_id", sa.String(), nullable=True),
        sa.Column("job_id", sa.UUID(), nullable=True),
        sa.Column("parent_version", sa.Integer(), nullable=True),
        sa.Column("result_version", sa.Integer(), nullable=True),
        sa.Column("artifact_sha256", sa.String(), nullable=True),
        sa.Column("payload_commitment", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("seq > 0", name=op.f("ck_ledger_entries_seq")),
        sa.CheckConstraint("octet_length(payload_commitment) = 32", name=op.f("ck_ledger_entries_payload_commitment")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_ledger_entries")),
    )
    for columns in (
        ["model_id"],
        ["model_id", "kind"],
        ["model_id", "kind", "actor_ref"],
        ["model_id", "actor_ref"],
        ["dataset_id"],
        ["kind"],
        ["kind", "actor_ref"],
        ["actor_ref"],
        ["job_id"],
        ["at"],
    ):
        op.create_index(f"ix_ledger_entries_{'_'.join(columns)}", "ledger_entries", [*columns, "seq"])
    for columns in (
        ["model_id", "parent_version"],
        ["model_id", "result_version"],
        ["parent_version"],
        ["result_version"],
    ):
        op.create_index(
            f"ix_ledger_entries_{'_'.join(columns)}",
            "ledger_entries",
            [*columns, "seq"],
            postgresql_where=sa.text(f"{columns[-1]} IS NOT NULL"),
        )
    op.create_table(
        "ledger_payloads",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.CheckConstraint("octet_length(salt) = 32", name=op.f("ck_ledger_payloads_salt")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_ledger_payloads")),
    )
    op.create_table(
        "ledger_nodes",
        sa.Column("level", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("octet_length(hash) = 32", name=op.f("ck_ledger_nodes_hash")),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_ledger_nodes")),
    )


def _take_over(connection: sa.Connection) -> None:
    entries, payloads, nodes = (
        sa.Table(name, sa.MetaData(), autoload_with=connection)
        for name in ("ledger_entries", "ledger_payloads", "ledger_nodes")
    )
    stored: dict[merkle.Coordinate, bytes] = {}
    latest = None

    def node(level: int, index: int) -> bytes:
        return stored[level, index]

    plain = connection.execute(sa.text("SELECT * FROM plain_ledger_entries ORDER BY seq")).mappings().all()
    for seq, row in enumerate(plain, start=1):
        salt = commitments.new_salt()
        payload = commitments.canonical_json(row["payload"])
        latest = row["at"] if latest is None else max(latest, row["at"])
        told = {name: row[name] for name in row if name not in {"seq", "at", "payload"}}
        commitment = commitments.payload_commitment(salt, row["payload"])
        job_id = None if row["job_id"] is None else str(row["job_id"])
        leaf = commitments.Leaf(**told | {"job_id": job_id}, seq=seq, at=latest, payload_commitment=commitment)
        new = merkle.appended(seq - 1, merkle.leaf_hash(commitments.leaf_bytes(leaf)), node)
        stored |= new
        connection.execute(entries.insert().values(seq=seq, at=latest, payload_commitment=commitment, **told))
        connection.execute(payloads.insert().values(seq=seq, salt=salt, payload=payload.decode()))
        connection.execute(
            nodes.insert(),
            [{"level": level, "position": index, "hash": digest} for (level, index), digest in new.items()],
        )


def _refuse(table: str, what: str) -> None:
    """A trigger binds the owner of the table too, whom grants do not."""
    op.execute(
        "CREATE OR REPLACE FUNCTION refuse_to_change_the_ledger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'the ledger is append-only: % of % is refused', TG_OP, TG_TABLE_NAME "
        "USING ERRCODE = 'insufficient_privilege'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER append_only BEFORE {what} ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_change_the_ledger()"
    )


def _create_tip() -> None:
    """The end of the ledger, for whoever appends next and nobody else until the transaction ends.

    A transaction that holds the lock and falls silent, frozen or cut off, is ended by the server. What the one before
    committed is seen because each statement of a volatile function looks anew. Time never runs backwards. The peaks of
    the tree are the nodes at the set bits of its size.
    """
    op.execute("""
        CREATE FUNCTION ledger_tip(
            OUT size bigint, OUT at timestamptz, OUT levels smallint[], OUT positions bigint[], OUT hashes bytea[]
        ) LANGUAGE plpgsql VOLATILE AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtext('modelmend ledger')),
                    set_config('idle_in_transaction_session_timeout', '5s', true);
            SELECT entries.seq, entries.at INTO size, at FROM ledger_entries AS entries ORDER BY seq DESC LIMIT 1;
            size := coalesce(size, 0);
            at := greatest(at, clock_timestamp());
            SELECT array_agg(nodes.level), array_agg(nodes.position), array_agg(nodes.hash)
            INTO levels, positions, hashes
            FROM generate_series(0, 62) AS bit
            JOIN ledger_nodes AS nodes ON nodes.level = bit AND nodes.position = (size >> bit) - 1
            WHERE (size >> bit) & 1 = 1;
        END $$
    """)


def _grant() -> None:
    # Roles belong to the whole cluster: another database of it may have made this one, even at this very moment.
    # Looked for first: an owner who may not make roles finds it made by whoever set up the cluster.
    op.execute(
        f"DO $$ BEGIN IF to_regrole('{APPLICATION_ROLE}') IS NULL THEN CREATE ROLE {APPLICATION_ROLE} NOLOGIN; END IF; "
        "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
    )
    op.execute(f"GRANT USAGE ON SCHEMA public TO {APPLICATION_ROLE}")
    for table, rights in RIGHTS.items():
        op.execute(f"GRANT {rights} ON {table} TO {APPLICATION_ROLE}")
    op.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {APPLICATION_ROLE}")


def downgrade() -> None:
    """Back to the plain ledger: entries keep what they say, hashes and commitments go."""
    op.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {APPLICATION_ROLE}")
    op.execute(f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM {APPLICATION_ROLE}")
    op.execute(f"REVOKE USAGE ON SCHEMA public FROM {APPLICATION_ROLE}")
    op.create_table(
        "plain_ledger_entries",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("actor_ref", sa.String(), nullable=False),
        sa.Column("dataset_id", sa.String(), nullable=True),
        sa.Column("model_id", sa.String(), nullable=True),
        sa.Column("job_id", sa.UUID(), nullable=True),
        sa.Column("parent_version", sa.Integer(), nullable=True),
        sa.Column("result_version", sa.Integer(), nullable=True),
        sa.Column("artifact_sha256", sa.String(), nullable=True),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_plain_ledger_entries")),
    )
    told = "seq, at, kind, actor_ref, dataset_id, model_id, job_id, parent_version, result_version, artifact_sha256"
    op.execute(
        f"INSERT INTO plain_ledger_entries ({told}, payload) "  # noqa: S608 (names of columns)
        f"SELECT {told}, coalesce(payload::jsonb, '{{}}') FROM ledger_entries LEFT JOIN ledger_payloads USING (seq)"
    )
    op.execute(
        "SELECT setval(pg_get_serial_sequence('plain_ledger_entries', 'seq'), max(seq)) FROM plain_ledger_entries"
    )
    for table in ("ledger_entries", "ledger_payloads", "ledger_nodes"):
        op.drop_table(table)
    op.execute("DROP FUNCTION refuse_to_change_the_ledger(), ledger_tip()")
    op.rename_table("plain_ledger_entries", "ledger_entries")
    op.execute("ALTER TABLE ledger_entries RENAME CONSTRAINT pk_plain_ledger_entries TO pk_ledger_entries")
    op.create_index("ix_ledger_entries_model_id_seq", "ledger_entries", ["model_id", "seq"], unique=False)
