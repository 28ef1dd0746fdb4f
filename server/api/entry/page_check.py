"""Refuse requests from web pages of other sites, on servers that require no API key.

A browser lets every page send requests to every address that it can reach, localhost included. The header `Host`
reveals DNS rebinding, in which the domain of a page resolves to this machine. `Origin` and `Sec-Fetch-Site` reveal a
page of another site. See docs/decisions/0115-foreign-pages.md.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache

from starlette.datastructures import Headers
from starlette.types import Scope

from server.errors import BadHost, Forbidden

PROBES = frozenset({"/health", "/ready"})
"""Paths that are answered with any `Host`, because load balancers and orchestrators probe under their own names."""
PAGES = frozenset({"/", "/docs"})
"""Pages that links on other sites may open."""

_AUTHORITY = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://(.+)")
_PAGE_SCHEMES = {"ws": "http", "wss": "https"}
"""Scheme of a WebSocket connection to the scheme of a page on the same site."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_KEPT_NAMES = 64
"""Number of names whose results are cached: most requests name the same host, and reading an address takes long."""


class PageCheck:
    """Checks the headers `Host`, `Origin` and `Sec-Fetch-Site` of requests.

    allowed_hosts: host names to accept besides this machine's; `*.example.com` accepts every name below example.com,
        and `*` any name.
    origins: origins of other sites whose pages may call the server; `*` accepts any origin.
    """

    def __init__(self, allowed_hosts: Iterable[str], origins: Sequence[str]) -> None:
        allowed = [name.lower() for name in allowed_hosts]
        self._any_host = "*" in allowed
        self._names = {"localhost", *allowed, _normal(socket.gethostname())}
        self._suffixes = (".localhost", *(name[1:] for name in allowed if name.startswith("*.")))
        self._origins = frozenset(origins)

    def look_up_full_name(self) -> None:
        """Start a thread that looks up the machine's full host name and adds it to the accepted names.

        Without a name server, the look-up may take many seconds.
        """
        threading.Thread(target=lambda: self._names.add(_normal(socket.getfqdn())), daemon=True).start()

    def check(self, scope: Scope, headers: Headers, any_host: bool = False) -> None:
        """Raise Forbidden for a request with an unknown host, or from a page of another site that is not allowed.

        any_host: accept any `Host`.
        """
        hosts = headers.getlist("host")
        if hosts and not (any_host or self._any_host or scope["path"] in PROBES or self._is_own(hosts[0])):
            raise Forbidden(
                "the name in the header Host is not one of this server: use an IP address or localhost, or start the "
                "server with the name in --allowed-hosts",
                "host",
            )
        if "*" in self._origins:
            return
        origins = headers.getlist("origin")
        others = [origin for origin in origins if origin not in self._origins]
        if any(not _is_same(origin, scope["scheme"], hosts) for origin in others):
            raise Forbidden(
                "pages of this origin may not call this server: start it with the origin in --cors-origins", "origin"
            )
        is_listed = bool(origins) and not others
        if headers.get("sec-fetch-site") == "cross-site" and not is_listed and not _opens_page(scope, headers):
            raise Forbidden(
                "pages of other sites may not call this server: start it with their origin in --cors-origins",
                "sec-fetch-site",
            )

    def _is_own(self, host: str) -> bool:
        """Whether the value of a `Host` header is an IP address or an accepted name."""
        name, _ = _split(host)
        return bool(name) and (_is_address(name) or name in self._names or name.endswith(self._suffixes))


def check_single_host(scope: Scope, headers: Headers) -> None:
    """Raise BadHost unless a request has exactly one header `Host` (RFC 9112, section 3.2).

    Health probes over HTTP/1.0 may have none, because HTTP/1.0 does not require it.
    """
    hosts = headers.getlist("host")
    if len(hosts) > 1:
        raise BadHost("the request has more than one header Host", "host")
    if not any(hosts) and not (scope["http_version"] == "1.0" and scope["path"] in PROBES):
        raise BadHost("the request has no header Host", "host")


def _opens_page(scope: Scope, headers: Headers) -> bool:
    """Whether the request is a browser's navigation to one of our pages, for example by a link."""
    return scope["method"] == "GET" and scope["path"] in PAGES and headers.get("sec-fetch-mode") == "navigate"


def _is_same(origin: str, scheme: str, hosts: Sequence[str]) -> bool:
    """Whether an `Origin` is the same as the request's target: the same scheme, name and port.

    scheme: scheme of the request. hosts: values of the header `Host`.
    """
    found = _ORIGIN.fullmatch(origin.lower())
    scheme = _PAGE_SCHEMES.get(scheme, scheme)
    if found is None or found[1] != scheme or not hosts:
        return False
    default = _DEFAULT_PORTS.get(scheme, 0)
    (name, port), (own_name, own_port) = _split(found[2]), _split(hosts[0])
    return bool(name) and (name, port or default) == (own_name, own_port or default)


@lru_cache(_KEPT_NAMES)
def _split(authority: str) -> tuple[str, int | None]:
    """Split `name:port` into name and port (None if absent). The name is in lower case, without the brackets of IPv6.

    The name is empty for malformed text.
    """
    if _is_address(authority):
        return authority.lower(), None
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return "", None
    address, name, port = found.groups()
    if address is not None and not _is_address(address):
        return "", None
    return _normal(address or name), int(port) if port else None


def _normal(name: str) -> str:
    """Convert a host name to lower case, and remove a dot at its end, the DNS root that some clients write."""
    return name.lower().removesuffix(".")


@lru_cache(_KEPT_NAMES)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
