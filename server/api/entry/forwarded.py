"""Find the real client address and URL scheme of a request that a trusted reverse proxy has forwarded."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

_SCHEMES = ("http", "https")
_SOCKET_SCHEMES = {"http": "ws", "https": "wss"}


class ForwardedMiddleware:
    """Replaces the client address and the scheme in the scope of requests that come from a trusted proxy.

    The client is the last address in `X-Forwarded-For` that is no trusted proxy. Every proxy appends the address that
    it received the request from, so a client can only forge the addresses before its own. Text that is no address
    ends the search. The scheme is the last one in `X-Forwarded-Proto`.

    proxies: addresses and networks of trusted proxies, such as `10.0.0.1` or `10.0.0.0/8`.
    """

    def __init__(self, app: ASGIApp, proxies: Iterable[str]) -> None:
        self.app = app
        self._networks = [ip_network(proxy, strict=False) for proxy in proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            self._apply(scope)
        await self.app(scope, receive, send)

    def _apply(self, scope: Scope) -> None:
        peer = _address(scope["client"][0]) if scope.get("client") else None
        if peer is None or not self._is_proxy(peer):
            return
        headers = Headers(scope=scope)
        client = None
        for text in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
            address = _address(text)
            if address is None:
                break
            client = address
            if not self._is_proxy(address):
                break
        if client is not None:
            scope["client"] = (str(client), 0)
        scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        if scheme in _SCHEMES:
            is_socket = scope["type"] == "websocket"
            scope["scheme"] = _SOCKET_SCHEMES[scheme] if is_socket else scheme

    def _is_proxy(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, which may have a port. Returns None for any other text. IPv4 mapped to IPv6 becomes IPv4.

    The zone of an IPv6 address (as in `fe80::1%eth0`) is removed: a client can write any text there, and the address
    is logged.
    """
    name = text.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
