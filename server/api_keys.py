"""API keys: read from the settings and the key file, compared in constant time, and read again when the file changes.

The key file has one of two forms. A file whose name ends in `.toml` has a table for each key:

    [keys.team-a]
    key = "..."             # or sha256 = "...", so that the file holds no key
    max_requests = 16       # limits are optional
    admin = true            # the key may load and unload models

Any other file has one key per line: printable ASCII characters without spaces. These keys are named after their line
number and have no limits. Empty lines and lines that begin with # are ignored. A file with any other line is refused
as a whole, so that a damaged file replaces no keys.
No message ever contains a key.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.errors import StartError
from server.limits.key_limits import KeyLimits

log = logging.getLogger("triptych.keys")

POLL_SECONDS = 1.0
"""Time between two checks of the key file. A change takes effect when two checks in a row find the same file."""
MAX_COST = 1e300
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[\x21-\x7e]+")
_FIELDS = (
    "key",
    "sha256",
    "max_requests",
    "max_tokens",
    "max_cost",
    "requests_per_minute",
    "tokens_per_minute",
    "admin",
)
_FORM = '`key = "..."` or `sha256 = "..."`'


@dataclass(frozen=True)
class ApiKey:
    """One API key: its SHA-256 digest, and its name and limits."""

    digest: bytes = field(repr=False)
    limits: KeyLimits


def key_digest(key: bytes) -> bytes:
    """Return the SHA-256 digest of a key, by which keys are compared."""
    return hashlib.sha256(key).digest()


class ApiKeys:
    """The API keys that the server accepts. False as a truth value if there are none; requests then need no key."""

    def __init__(self, keys: Sequence[ApiKey] = ()) -> None:
        self._keys = {key.limits.name: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def digests(self) -> list[bytes]:
        """The SHA-256 digest of each key."""
        return [key.digest for key in self._keys.values()]

    def find(self, sent: bytes) -> KeyLimits | None:
        """Return the limits of the key that a client has sent; None for an unknown key.

        The time does not depend on the result or on the number of correct characters, because all keys are compared,
        by digests of equal length.
        """
        digest = key_digest(sent)
        found = None
        for key in self._keys.values():
            found = key.limits if hmac.compare_digest(digest, key.digest) else found
        return found

    def changes(self, old: ApiKeys) -> list[str]:
        """Describe the differences from older keys: `added team-a`, `removed team-b`, `changed team-c`."""
        names = sorted(self._keys.keys() | old._keys.keys())
        words = {(False, True): "added", (True, False): "removed", (True, True): "changed"}
        return [
            f"{words[name in old._keys, name in self._keys]} {name}"
            for name in names
            if self._keys.get(name) != old._keys.get(name)
        ]


def load_keys(stated: Sequence[str], path: Path | None) -> ApiKeys:
    """Return the keys of the settings and of the key file.

    stated: keys from the environment or the configuration file. path: the key file; None for no file.
    Raises StartError, one line, for a file that is unreadable, invalid or without keys.
    """
    keys = _different(_api_key(f"setting-{number}", key) for number, key in enumerate(stated, 1))
    if path is not None:
        try:
            # Reading anything else, such as a named pipe, may block for ever.
            if not stat.S_ISREG(path.stat().st_mode):
                raise StartError(f"api_key_file: {path} is not a regular file")
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise StartError(f"api_key_file: cannot read {path}: {error.strerror or type(error).__name__}") from None
        except UnicodeDecodeError:
            raise StartError(f"api_key_file: cannot read {path}: it is not UTF-8") from None
        try:
            found = _from_toml(text) if path.suffix == ".toml" else _from_lines(text)
            if not found:
                raise ValueError("contains no key")
        except ValueError as error:
            raise StartError(f"api_key_file: {path} {error}") from None
        # The keys of the file come first: they may have limits, and of equal keys the first one is kept.
        keys = _different([*found, *keys])
        if len({key.limits.name for key in keys}) < len(keys):
            raise StartError(
                f"api_key_file: {path} has a table [keys.setting-NUMBER], the name of a key of the settings"
            )
    return ApiKeys(keys)


def _api_key(name: str, key: str) -> ApiKey:
    return ApiKey(key_digest(key.encode()), KeyLimits(name))


def _different(keys: Iterable[ApiKey]) -> list[ApiKey]:
    """Return the keys without repetitions. Of equal keys, the first one is kept."""
    found: dict[bytes, ApiKey] = {}
    for key in keys:
        found.setdefault(key.digest, key)
    return list(found.values())


def _from_lines(text: str) -> list[ApiKey]:
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            if line.startswith("["):
                raise ValueError(f"line {number} begins with [: the name of a file with tables must end in .toml")
            key = line.strip()
            if not _KEY.fullmatch(key):
                raise ValueError(f"line {number} is no key: a key has printable ASCII characters without spaces")
            keys.append(_api_key(f"line-{number}", key))
    return keys


def _from_toml(text: str) -> list[ApiKey]:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # Only the place of the fault is reported: the rest of the parser's message may quote the file.
        where = re.search(r"line \d+, column \d+", str(error))
        raise ValueError(f"is not valid TOML{f', at {where[0]}' if where else ''}") from None
    tables = table.pop("keys", {})
    if table or not isinstance(tables, dict) or not all(isinstance(fields, dict) for fields in tables.values()):
        raise ValueError("must have tables [keys.NAME] only, one for each key")
    names: dict[bytes, str] = {}
    keys = []
    for number, (name, fields) in enumerate(tables.items(), 1):
        if not _NAME.fullmatch(name):
            raise ValueError(f"table {number}: a name has letters, digits, '.', '_' and '-', 64 at most")
        key = _from_table(f"[keys.{name}]", name, fields)
        first = names.setdefault(key.digest, name)
        if first != name:
            raise ValueError(f"[keys.{name}]: this is the key of [keys.{first}] too")
        keys.append(key)
    return keys


def _from_table(where: str, name: str, fields: Mapping[str, Any]) -> ApiKey:
    """Read one table of the key file.

    where: name of the table, for error messages. name: name of the key. fields: contents of the table.
    Raises ValueError for unknown fields and invalid values. Unknown field names are not shown: they may be keys.
    """
    unknown = len(fields.keys() - set(_FIELDS))
    if unknown:
        raise ValueError(f"{where}: {unknown} of its fields are unknown; the fields are {', '.join(_FIELDS)}")
    if ("key" in fields) == ("sha256" in fields):
        raise ValueError(f"{where}: write either {_FORM}")
    if "key" in fields:
        key = fields["key"]
        if not isinstance(key, str) or not key or key != key.strip():
            raise ValueError(f"{where}: key must be text, without spaces at its ends")
        digest = key_digest(key.encode())
    else:
        if not isinstance(fields["sha256"], str) or not re.fullmatch(r"[0-9a-fA-F]{64}", fields["sha256"]):
            raise ValueError(f"{where}: sha256 must be 64 hexadecimal digits")
        digest = bytes.fromhex(fields["sha256"])
    limits = KeyLimits(
        name,
        _count(where, "max_requests", fields.get("max_requests")),
        _count(where, "max_tokens", fields.get("max_tokens")),
        _cost(where, fields.get("max_cost")),
        _admin(where, fields.get("admin", False)),
        _count(where, "requests_per_minute", fields.get("requests_per_minute")),
        _count(where, "tokens_per_minute", fields.get("tokens_per_minute")),
    )
    return ApiKey(digest, limits)


def _admin(where: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{where}: admin must be true or false")
    return value


def _count(where: str, name: str, value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise ValueError(f"{where}: {name} must be a whole number, at least 1")
    return value


def _cost(where: str, value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value <= MAX_COST:
        raise ValueError(f"{where}: max_cost must be a number above 0, {MAX_COST:g} at most")
    return float(value)


class KeyFileWatcher:
    """Reads the API keys again when the key file changes. If the new file is invalid, the old keys stay in use.

    path: the key file. A symbolic link is followed, so that a new target is a change.
    load: reads all keys. Raises StartError, which is logged.
    keys: the keys in use.
    """

    def __init__(self, path: Path, load: Callable[[], ApiKeys], keys: ApiKeys) -> None:
        self._path = path
        self._load = load
        self._keys = keys
        # Nothing counts as read yet: the file may have changed since the keys in use were read.
        self._read: tuple[int, ...] | None = None
        self._seen: tuple[int, ...] | None = None

    def poll(self) -> ApiKeys | None:
        """Check the file once. Returns the new keys if they changed, else None.

        A changed file is read at the second check that finds it the same, so that it is not read while it is written.
        """
        previous, self._seen = self._seen, self._identity()
        if self._seen == self._read or self._seen != previous:
            return None
        self._read = self._seen
        try:
            keys = self._load()
        except StartError as error:
            log.error("the API keys stay as they were: %s", error)
            return None
        changes = keys.changes(self._keys)
        if not changes:
            return None
        self._keys = keys
        log.info("the API keys were read again: %s", ", ".join(changes))
        return keys

    async def run(self, use: Callable[[ApiKeys], None], poll_seconds: float = POLL_SECONDS) -> None:
        """Check the file every `poll_seconds`, until cancelled. use: called with the new keys after each change."""
        while True:
            await asyncio.sleep(poll_seconds)
            keys = await asyncio.to_thread(self.poll)  # in a thread, because a network file system may block
            if keys is not None:
                use(keys)

    def _identity(self) -> tuple[int, ...]:
        """Numbers that change when the file is written or replaced: device, inode, time and size. Empty if missing."""
        try:
            about = self._path.stat()
        except OSError:
            return ()
        return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size
