"""TLS from certificate and key files in PEM form. An unusable file is reported to the operator in one line."""

from __future__ import annotations

import logging
import re
import ssl
import stat
from pathlib import Path

from server.errors import StartError
from server.settings.fields import PREFIX
from server.settings.settings import Settings

log = logging.getLogger("triptych")

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----")
_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS context for the server's port, or None for plain HTTP. TLS versions below 1.2 are refused.

    Raises StartError for a file that cannot be read or used.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    _load(context, settings, settings.tls_certificate, settings.tls_key)
    return context


def read_certificates_again(context: ssl.SSLContext, settings: Settings) -> None:
    """Load the current certificate and key files into a context, for new connections.

    If the files cannot be used, the error is logged and the context stays as it was.

    context: the TLS context in use, made from the same files.
    """
    try:
        tls_context(settings)  # a pair that does not fit would leave the context in use without a key
        assert settings.tls_certificate is not None and settings.tls_key is not None
        _load(context, settings, settings.tls_certificate, settings.tls_key)
    except StartError as error:
        log.error("the certificate stays as it was: %s", error)
    else:
        log.info("the certificate was read again")


def _load(context: ssl.SSLContext, settings: Settings, certificate: Path, key: Path) -> None:
    """Read certificate and key into a context. Raises StartError for a file that cannot be read or used."""
    _check_form("tls_certificate", certificate, _CERTIFICATE, "certificate")
    _check_form("tls_key", key, _KEY, "private key")
    password = settings.tls_key_password.get_secret_value() if settings.tls_key_password else ""
    asked = False

    def give_password() -> str:
        # Without this function, OpenSSL would ask on the terminal.
        nonlocal asked
        asked = True
        return password

    try:
        context.load_cert_chain(certificate, key, give_password)
    except (ssl.SSLError, ValueError) as error:
        raise StartError(_reason(error, certificate, key, asked, bool(password))) from None


def _check_form(setting: str, path: Path, form: re.Pattern[bytes], name: str) -> None:
    try:
        # Reading anything else, such as a named pipe, may block for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise StartError(f"{setting}: {path} is not a regular file")
        data = path.read_bytes()
    except OSError as error:
        raise StartError(f"{setting}: cannot read {path}: {error.strerror or type(error).__name__}") from None
    if not form.search(data):
        raise StartError(f"{setting}: {path} contains no {name} in PEM form")


def _reason(error: Exception, certificate: Path, key: Path, encrypted: bool, has_password: bool) -> str:
    if encrypted and not has_password:
        return f"tls_key: {key} is encrypted: set {PREFIX}TLS_KEY_PASSWORD"
    if encrypted and getattr(error, "reason", None) != "KEY_VALUES_MISMATCH":
        return f"tls_key: {PREFIX}TLS_KEY_PASSWORD does not decrypt {key}"
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"tls_key: {key} is not the key of the certificate {certificate}"
    return f"tls_certificate: cannot use {certificate} with {key}: {getattr(error, 'reason', None) or 'invalid files'}"
