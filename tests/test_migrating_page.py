"""docs/migrating.md names only settings, routes and environment variables that exist."""

from __future__ import annotations

import re
from pathlib import Path

from server.api.dialects import registry
from server.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "migrating.md").read_text()
STATUS_ROUTES = {"/health", "/ready", "/info", "/metrics"}


def test_our_settings_exist() -> None:
    rows = re.findall(r"^\| .*? \| (.*) \|$", PAGE, re.MULTILINE)
    flags = {flag for row in rows for flag in re.findall(r"`--([a-z-]+)", row)}
    assert len(flags) > 20
    assert not {flag for flag in flags if flag.replace("-", "_") not in Settings.model_fields}
    variables = set(re.findall(r"TRIPTYCH_([A-Z_]+)", PAGE))
    assert not {name for name in variables if name.lower() not in {*Settings.model_fields, "api_keys"}}


def test_the_routes_that_answer_as_before_exist() -> None:
    served = {path for route in registry.ROUTES for path in (route.path, *route.aliases)} | STATUS_ROUTES
    served |= {path for route in registry.GET_ROUTES for path in (route.path, *route.aliases)}
    served |= {route.path for route in registry.OWNED_ROUTES}
    sentences = [line for line in PAGE.splitlines() if "answer as before" in line]
    named = {path for line in sentences for path in re.findall(r"`(/[a-z0-9_/]*)`", line)}
    assert len(sentences) == 6 and len(named) > 20
    assert not named - served - {"/v1"}, "/v1 alone is a prefix"
