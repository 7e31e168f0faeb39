"""The signing key of a running service is rotated: nothing restarts, and holders of the old key can follow."""

from __future__ import annotations

from pathlib import Path

from app.ledger.archive import CheckpointArchive
from app.ledger.checkpoints import UntrustedCheckpoint, VerifierKey, verify_checkpoint
from app.ledger.signing import KeyDirectory
from tests.e2e.serving import served
from tests.waiting import wait_until


def test_a_running_api_signs_with_the_new_key_at_once(tmp_path: Path) -> None:
    with served(tmp_path, environment={"MODELMEND_CHECKPOINT_SECONDS": "0.1"}) as service:
        api = service.child("app.serving.api")
        archive = CheckpointArchive(service.data_dir / "checkpoints")
        (old,) = (published.key for published in KeyDirectory(service.data_dir / "signing").published())
        rotated = service.run("keys", "rotate-signing")
        assert rotated.returncode == 0, rotated.stderr
        new = VerifierKey.parse(rotated.stdout.strip())
        assert str(old) in rotated.stderr

        both = archive.newest()
        assert both
        size = verify_checkpoint(both, [old], origin=old.name).size
        assert verify_checkpoint(both, [new], origin=old.name).size == size
        with service.client() as client:
            client.create_api_key("one more entry", "auditor")
        later = wait_until(lambda: archive.at_least(size + 1), 30, "no checkpoint covers the new entry")
        assert later
        assert verify_checkpoint(later, [new], origin=old.name).size == size + 1
        assert not is_trusted(later, old)
        assert service.child("app.serving.api") == api


def is_trusted(note: str, key: VerifierKey) -> bool:
    try:
        verify_checkpoint(note, [key], origin=key.name)
    except UntrustedCheckpoint:
        return False
    return True
