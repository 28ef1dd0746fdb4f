"""TLS: every error in the files is a message of one line; direct writes are encrypted; a slow handshake is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvicorn

from server.api import serve
from server.api.bodies.sse import DIRECT_CONNECTION
from server.api.connection.protocol import DirectHttpProtocol
from server.api.connection.tls import read_certificates_again, tls_context
from server.errors import StartError
from server.settings.read import load
from tests.wire.test_tls_and_metrics_port import write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of certificates and keys, good and bad."""
    root = tmp_path_factory.mktemp("tls")
    issued = trustme.CA().issue_cert("localhost")
    contents = {
        "certificate": issued.cert_chain_pems[0].bytes(),
        "key": issued.private_key_pem.bytes(),
        "both": issued.private_key_and_cert_chain_pem.bytes(),
        "other key": trustme.CA().issue_cert("localhost").private_key_pem.bytes(),
        "damaged": issued.cert_chain_pems[0].bytes().replace(b"MI", b"xx", 1),
        "text": b"no certificate",
    }
    for name, content in contents.items():
        (root / name).write_bytes(content)
    os.mkfifo(root / "pipe")  # reading it would block for ever
    (root / "encrypted").mkdir()
    _, encrypted, _ = write_files(root / "encrypted")
    return {name: str(root / name) for name in [*contents, "missing", "pipe"]} | {"encrypted": encrypted}


def context(certificate: str, key: str, **more: str) -> ssl.SSLContext | None:
    return tls_context(load({"tls_certificate": certificate, "tls_key": key, **more}))


def test_good_files(files: dict[str, str]) -> None:
    made = context(files["certificate"], files["key"])
    assert made is not None and made.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context(files["both"], files["both"]) is not None
    assert tls_context(load({})) is None


def test_certificates_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """New connections get a renewed certificate. If the new file is damaged, the old certificate is kept."""
    caplog.set_level("INFO", "triptych")
    authority, certificate = trustme.CA(), tmp_path / "certificate"

    def write(name: str) -> None:
        certificate.write_bytes(authority.issue_cert(name).private_key_and_cert_chain_pem.bytes())

    def names_of_connection(context: ssl.SSLContext) -> list[str]:
        """The names in the certificate that a client gets."""
        asking = ssl.create_default_context()
        asking.check_hostname = False
        authority.configure_trust(asking)
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = asking.wrap_bio(to_client, to_server)
        server = context.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(3):
            for side in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        return [str(name) for _, name in client.getpeercert()["subjectAltName"]]  # type: ignore[index, union-attr, misc]

    write("one.example")
    settings = load({"tls_certificate": str(certificate), "tls_key": str(certificate)})
    made = tls_context(settings)
    assert made is not None and names_of_connection(made) == ["one.example"]
    write("two.example")
    read_certificates_again(made, settings)
    assert names_of_connection(made) == ["two.example"]
    certificate.write_text("damaged")
    read_certificates_again(made, settings)
    assert names_of_connection(made) == ["two.example"]
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert "stays as it was: tls_certificate: " in caplog.records[1].getMessage()


@pytest.mark.parametrize(
    ("certificate", "key", "password", "message"),
    [
        ("missing", "key", "", "tls_certificate: cannot read .*missing: No such file or directory"),
        ("certificate", "missing", "", "tls_key: cannot read .*missing: No such file or directory"),
        ("text", "key", "", "tls_certificate: .*text contains no certificate in PEM form"),
        ("certificate", "certificate", "", "tls_key: .*certificate contains no private key in PEM form"),
        ("certificate", "other key", "", "tls_key: .*other key is not the key of the certificate .*certificate"),
        ("certificate", "encrypted", "", "tls_key: .*key.pem is encrypted: set TRIPTYCH_TLS_KEY_PASSWORD"),
        ("certificate", "encrypted", "SECRET", "tls_key: TRIPTYCH_TLS_KEY_PASSWORD does not decrypt .*key.pem"),
        ("certificate", "encrypted", "key-password", "tls_key: .*key.pem is not the key of the certificate"),
        ("damaged", "key", "", "tls_certificate: cannot use .*damaged with "),
        ("pipe", "key", "", "tls_certificate: .*pipe is not a regular file"),
        ("certificate", "pipe", "", "tls_key: .*pipe is not a regular file"),
    ],
)
def test_each_mistake_is_one_line(
    files: dict[str, str], certificate: str, key: str, password: str, message: str
) -> None:
    with pytest.raises(StartError, match=f"^{message}") as error:
        context(files[certificate], files[key], **({"tls_key_password": password} if password else {}))
    assert "\n" not in str(error.value) and "SECRET" not in str(error.value)


def test_half_of_the_settings_is_a_mistake(files: dict[str, str]) -> None:
    for name in ("tls_certificate", "tls_key"):
        with pytest.raises(StartError, match="tls_certificate and tls_key: set both of them, or neither"):
            load({name: files["both"]})


@contextlib.asynccontextmanager
async def serving(app: Any, tls: ssl.SSLContext) -> Any:
    """Context manager that runs an application with our uvicorn configuration and TLS. Yields its port."""
    with serve.listen("127.0.0.1", 0) as listener:
        server = serve._UvicornServer(serve._config(app, DirectHttpProtocol, "off"), listener, tls)
        task = asyncio.create_task(server.serve())
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def test_direct_writes_are_encrypted(tmp_path: Path) -> None:
    chain, key, trusting = write_files(tmp_path)
    tls = context(chain, key, tls_key_password="key-password")
    accepted, schemes = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        schemes.append(scope["scheme"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        accepted.append(scope[DIRECT_CONNECTION].write(b"written directly"))
        await send({"type": "http.response.body", "body": b" and not", "more_body": False})

    assert tls is not None
    async with serving(app, tls) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert accepted == [True] and schemes == ["https"]
    assert answer.endswith(b"\r\n\r\n10\r\nwritten directly\r\n8\r\n and not\r\n0\r\n\r\n")


async def test_a_client_that_sends_no_handshake_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HEADER_SECONDS", 0.05)
    chain, key, _ = write_files(tmp_path)
    tls = context(chain, key, tls_key_password="key-password")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no request was sent")

    assert tls is not None and issubclass(serve._UvicornServer, uvicorn.Server)
    async with serving(app, tls) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
