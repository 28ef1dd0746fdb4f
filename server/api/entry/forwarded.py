"""The client and the scheme of a request that a trusted reverse proxy has forwarded."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

_SCHEMES = ("http", "https")
_SOCKET_SCHEMES = {"http": "ws", "https": "wss"}


class ForwardedMiddleware:
    """Reads `X-Forwarded-For` and `X-Forwarded-Proto` of requests that come from a trusted proxy.

    The client is the last address of `X-Forwarded-For` that is no trusted proxy: every proxy appends the address of its
    own peer, so that a client can only forge the addresses before it. Text that is no address ends the search.

    proxies: addresses and networks, as `10.0.0.1` or `10.0.0.0/8`.
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
    """An IP address, alone or with a port; None for any other text. An IPv4 address within IPv6 becomes IPv4.

    The zone of an IPv6 address (`fe80::1%eth0`) is left out: it may be any text, and the log shows the address.
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
