"""Read the arguments of a Ray Serve application: settings of Triptych by name, and `config`, a path of a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.errors import StartError
from server.settings.fields import PREFIX
from server.settings.read import load
from server.settings.settings import Settings

ADDRESS_SETTINGS = frozenset({"host", "port"})
"""Settings that are refused as arguments, because Ray Serve binds the address.

They are ignored in the environment, where container images set them.
"""
LISTENER_SETTINGS = ("tls_certificate", "metrics_port")
"""Settings of listening sockets. They are refused, because a replica has none: Ray Serve receives the requests."""


def read(arguments: Mapping[str, Any]) -> Settings:
    """Read the settings of a replica.

    Arguments take precedence over the environment, and the environment over the file `config`.
    Raises StartError, one line that names the setting, for an unknown or refused setting and for an invalid value.
    """
    values = dict(arguments)
    config = values.pop("config", None)
    for name in values:
        if name in ADDRESS_SETTINGS:
            raise StartError(f"{name}: Ray Serve binds the address; set http_options in its configuration")
        if name not in Settings.model_fields:
            raise StartError(f"{name} is not a setting of Triptych")
    settings = load(values, None if config is None else Path(config))
    for name in LISTENER_SETTINGS:
        if getattr(settings, name) is not None:
            raise StartError(f"{name}: only `triptych serve` has this setting; Ray Serve has a listener of its own")
    return settings


def check_exposure(settings: Settings) -> None:
    """Raise StartError if there is no API key and `insecure_no_auth` is off.

    The proxies of Ray Serve usually listen on a public address.
    """
    if not settings.keys() and not settings.insecure_no_auth:
        raise StartError(
            f"other machines may reach the proxies of Ray Serve, but no API key is set: set {PREFIX}API_KEYS or "
            "api_key_file, or allow access without a key with insecure_no_auth=true"
        )
