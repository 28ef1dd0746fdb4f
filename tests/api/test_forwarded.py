"""The client and the scheme behind a reverse proxy."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from server.api.entry.forwarded import ForwardedMiddleware
from server.settings.settings import Settings

PROXIES = ("127.0.0.1", "10.0.0.0/8", "::1")


def forwarded(
    peer: str | None, *headers: tuple[str, str], proxies: tuple[str, ...] = PROXIES
) -> tuple[str | None, str]:
    """The client and the scheme that the application sees."""
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    scope = {
        "type": "http",
        "scheme": "http",
        "client": None if peer is None else (peer, 5000),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }
    asyncio.run(ForwardedMiddleware(app, PROXIES)(scope, None, None))  # type: ignore[arg-type]
    client = seen[0]["client"]
    return (client and client[0], seen[0]["scheme"])


def by(value: str) -> tuple[str, str]:
    return ("x-forwarded-for", value)


@pytest.mark.parametrize(
    ("peer", "sent", "client"),
    [
        ("127.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("127.0.0.1", "1.2.3.4, 203.0.113.7, 10.1.1.1", "203.0.113.7"),
        ("127.0.0.1", "10.2.2.2, 10.1.1.1", "10.2.2.2"),
        ("::1", "[2001:db8::7]:443", "2001:db8::7"),
        ("::ffff:10.0.0.3", "203.0.113.7:5000", "203.0.113.7"),
        ("203.0.113.9", "1.2.3.4", "203.0.113.9"),
        ("127.0.0.1", '" 200 forged', "127.0.0.1"),
        ("127.0.0.1", "1.2.3.4, unknown, 10.1.1.1", "10.1.1.1"),
        ("127.0.0.1", "fe80::1%x GET /admin 200 key=root", "fe80::1"),
        ("127.0.0.1", '[fe80::1%" \x1b[2J]:443', "fe80::1"),
        ("fe80::9%eth0", "1.2.3.4", "fe80::9%eth0"),
        ("::1%lo", "1.2.3.4", "1.2.3.4"),
        ("127.0.0.1", "", "127.0.0.1"),
        (None, "1.2.3.4", None),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(peer: str | None, sent: str, client: str | None) -> None:
    assert forwarded(peer, by(sent))[0] == client


def test_several_headers_are_one_list() -> None:
    assert forwarded("127.0.0.1", by("1.2.3.4"), by("203.0.113.7"), by("10.1.1.1"))[0] == "203.0.113.7"


@pytest.mark.parametrize(
    ("peer", "sent", "scheme"),
    [
        ("127.0.0.1", "https", "https"),
        ("127.0.0.1", "https, HTTP", "http"),
        ("127.0.0.1", "gopher", "http"),
        ("203.0.113.9", "https", "http"),
    ],
)
def test_the_scheme_is_that_of_a_trusted_proxy(peer: str, sent: str, scheme: str) -> None:
    assert forwarded(peer, ("x-forwarded-proto", sent))[1] == scheme


@pytest.mark.parametrize("name", ["localhost", "10.0.0.0/33", "1.2.3", ""])
def test_proxies_are_addresses_or_networks(name: str) -> None:
    with pytest.raises(ValueError, match="trusted_proxies: write addresses or networks"):
        Settings(models=["a=b"], trusted_proxies=[name])
