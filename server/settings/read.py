"""Read the settings from the command line, else from `TRIPTYCH_*` in the environment, else from the `--config` file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource, PydanticBaseSettingsSource

from server.client.environment import VARIABLES as CLIENT_VARIABLES
from server.errors import StartError
from server.service_links import is_service_link
from server.settings.fields import PREFIX
from server.settings.settings import Settings


def _with_file(table: dict[str, Any]) -> type[Settings]:
    """Create a settings class whose values come from its arguments, else the environment, else the table of a file.

    Variables of the environment that Kubernetes sets for a Service are ignored.
    """

    class Sources(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            assert isinstance(env_settings, EnvSettingsSource)
            env_settings.env_vars = {
                name: value for name, value in env_settings.env_vars.items() if not is_service_link(name, value or "")
            }
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=table)

    return Sources


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Read the settings from all sources.

    flags: values of the command line, by the name of the setting.
    config: TOML file; None for no file.
    Raises StartError, one line that names the setting, for an unknown setting or an invalid value, and for a file that
    cannot be read.
    """
    for name, value in os.environ.items():
        field = name.removeprefix(PREFIX).lower()
        is_known = field in Settings.model_fields or name in CLIENT_VARIABLES or is_service_link(name, value)
        if name.startswith(PREFIX) and not is_known:
            raise StartError(f"environment: {name} is not a setting of Triptych")
    try:
        return _with_file(_read_table(config) if config is not None else {})(**flags)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            raise StartError(f"{config}: {where} is not a setting of Triptych") from None
        if (
            where
            and isinstance(first["input"], str | int | float)
            and not where.startswith(("api_key", "tls_key_password"))
        ):
            text += f", not {str(first['input'])[:80]!r}"
        raise StartError(f"{where}: {text}" if where else text) from None


def _read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StartError(f"config: cannot read {path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error).splitlines()[0]
