"""The validated settings of the server, with values that are derived from several settings."""

from __future__ import annotations

import ipaddress

from pydantic import model_validator

from server.api_keys import ApiKeys, load_keys
from server.errors import StartError
from server.settings.checks import check_entries, check_names, check_pairs
from server.settings.fields import PREFIX, SettingsFields


class Settings(SettingsFields):
    """All settings, validated. Raises ValidationError of pydantic for invalid values and combinations."""

    @model_validator(mode="after")
    def _check(self) -> Settings:
        check_entries(self)
        check_names(self)
        check_pairs(self)
        return self

    @property
    def on_demand(self) -> bool:
        """Whether models are loaded when a request asks for them, and not at the start."""
        return self.memory is not None or self.models_dir is not None or bool(self.idle_seconds or self.preload)

    def keys(self) -> ApiKeys:
        """Read all API keys, from `api_keys` and the key file. Raises StartError for an unreadable or invalid file."""
        return load_keys([key.get_secret_value() for key in self.api_keys], self.api_key_file)

    def check_exposure(self) -> None:
        """Raise StartError if the server would listen on a public address without an API key.

        The setting `insecure_no_auth` allows it.
        """
        if self.keys() or self.insecure_no_auth:
            return
        hosts = {"host": self.host} | ({} if self.metrics_port is None else {"metrics_host": self.metrics_host})
        for name, host in hosts.items():
            if not is_loopback(host):
                raise StartError(
                    f"{name} {host} is reachable from other machines, but no API key is set: "
                    f"set {PREFIX}API_KEYS or --api-key-file, or allow access without a key with --insecure-no-auth"
                )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only. False for host names other than `localhost`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
