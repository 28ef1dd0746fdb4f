"""Recognise the environment variables that Kubernetes sets for a Service named `triptych` or `triptych-...`.

They begin like the variables of settings. `TRIPTYCH_PORT` even has the name of a setting, but its value is an address.
Source: https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables
"""

from __future__ import annotations

import re

_NAME = re.compile(
    r"TRIPTYCH_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_PORT_NAME = re.compile(r"TRIPTYCH_([A-Z0-9_]+_)?PORT")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes has set an environment variable, for example `TRIPTYCH_PORT_8000_TCP_ADDR`.

    name: name of the variable, in upper or lower case. value: its value.
    """
    name = name.upper()
    return bool(_NAME.fullmatch(name) or (_PORT_NAME.fullmatch(name) and _ADDRESS.fullmatch(value)))
