"""Configuration: one class, read from the environment (prefix ``MODELMEND_``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

SECRETS_DIR = "MODELMEND_SECRETS_DIR"  # a variable only: it says where settings are, it is none
DEFAULT_SECRETS_DIR = Path("/run/secrets")  # where container engines put them


class Settings(BaseSettings):
    """Everything a deployment may choose. Sizes are bytes, times are seconds.

    A variable that is not set may be a file of its name in lower case (``modelmend_database_url``) in the directory
    that ``MODELMEND_SECRETS_DIR`` names.
    """

    model_config = SettingsConfigDict(env_prefix="MODELMEND_", extra="forbid")

    data_dir: Path = Field(Path(".modelmend"), description="Artifacts, images and the embedded servers' files.")
    database_url: str | None = Field(None, description="Postgres 14+; unset starts the embedded one.")
    redis_url: str | None = Field(None, description="Redis 6+; unset starts the embedded one.")
    host: str = Field("127.0.0.1", description="Address the API listens on.")
    port: int = Field(8000, ge=0, le=65535, description="Port the API listens on.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where workers compute.")

    max_request_bytes: PositiveInt = Field(16 << 20, description="Limit of a JSON body.")
    max_upload_bytes: PositiveInt = Field(2 << 30, description="Limit of one multipart request.")
    max_image_bytes: PositiveInt = Field(16 << 20, description="Limit of one encoded image.")
    max_image_pixels: PositiveInt = Field(50_000_000, description="Limit of one decoded image, in pixels.")
    max_manifest_rows: PositiveInt = Field(1_000_000, description="Limit of rows in one manifest.")
    max_edit_items: PositiveInt = Field(100_000, description="Limit of labels, samples or concepts in one edit.")

    ledger_origin: str | None = Field(
        None, description="Name of the ledger in its checkpoints; unset makes one with the first signing key."
    )
    signing_dir: Path | None = Field(None, description="Keys that sign checkpoints; unset is `signing` in data_dir.")
    checkpoint_dir: Path | None = Field(
        None, description="Signed checkpoints, outside the database; unset is `checkpoints` in data_dir."
    )
    checkpoint_entries: PositiveInt = Field(256, description="So many entries are followed by a signed checkpoint.")
    checkpoint_seconds: PositiveFloat = Field(60.0, description="An entry is under a signed checkpoint after so long.")

    queue_name: str = Field("modelmend", description="Name of the RQ queue.")
    lease_seconds: PositiveFloat = Field(8.0, description="A running job whose lease is older is taken over.")
    heartbeat_seconds: PositiveFloat = Field(2.0, description="How often a worker renews its lease.")
    sweep_seconds: PositiveFloat = Field(2.0, description="How often a worker looks for forgotten jobs.")
    max_attempts: PositiveInt = Field(3, description="A job that died this often fails.")
    drain_seconds: PositiveFloat = Field(25.0, description="How long a stopping worker lets its job run on.")
    pulse_file: Path | None = Field(None, description="A file that a worker touches for as long as it can take jobs.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments before the environment before files; the directory of files is looked up now, not at import."""
        directory = Path(os.environ.get(SECRETS_DIR) or DEFAULT_SECRETS_DIR)
        if not directory.is_dir():  # a source on it would warn
            return init_settings, env_settings
        return init_settings, env_settings, SecretsSettingsSource(settings_cls, secrets_dir=directory)
