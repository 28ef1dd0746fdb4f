"""Stored sets of allowed sequences, which requests name instead of sending their sequences each time.

A set belongs to the API key that has sent it and to one model, because it consists of token ids of that model. Its trie
is in the memory of this process and of the workers with the model. See docs/decisions/0169-stored-sequences.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime

from server.errors import InvalidRequest, NotFound, RequestTooLarge
from server.ipc.client.call import Call

SET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
"""Regular expression that the name of a set must match."""
MAX_SETS = 1_000
"""Maximum number of sets of one API key."""
DEFAULT_MEMORY_BYTES = 256 << 20
_NODE_BYTES = 9
"""Memory of a node of a trie: its token, the index of its first child, and whether a sequence ends there."""


@dataclass(eq=False)
class StoredSet:
    """One stored set of allowed sequences.

    owner: salt of the API key. set_id: id in messages to the workers.
    num_sequences, num_tokens: sequences as they were sent, repeated ones included, and their tokens. num_nodes: nodes
        of the trie.
    created: in the format of RFC 3339.
    users: requests in progress that name the set. is_dropped: no further request may name it.
    """

    owner: str
    name: str
    model: str
    set_id: int
    num_sequences: int
    num_tokens: int
    num_nodes: int
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    users: int = 0
    is_dropped: bool = False

    @property
    def num_bytes(self) -> int:
        """Memory in bytes that the trie takes in this process, and again in each worker."""
        return _NODE_BYTES * self.num_nodes


class SequenceSets:
    """The stored sets of all API keys.

    max_bytes: memory of all sets together. Each API key has an equal share.
    forget: called with the id of a set that is dropped and that no request in progress names.
    """

    def __init__(
        self, max_bytes: int = DEFAULT_MEMORY_BYTES, forget: Callable[[int], None] = lambda set_id: None
    ) -> None:
        self._max_bytes, self._forget = max_bytes, forget
        self._sets: dict[tuple[str, str], StoredSet] = {}
        self._owners: Collection[str] = {""}

    def use_owners(self, owners: Collection[str]) -> None:
        """Set the owners, one salt for each API key. The sets of other owners are dropped."""
        self._owners = owners
        for found in [found for found in self._sets.values() if found.owner not in owners]:
            self._drop(found)

    def all(self, salt: str) -> list[StoredSet]:
        """The sets of an API key, in the order of their names."""
        return sorted((found for found in self._sets.values() if found.owner == salt), key=lambda found: found.name)

    def get(self, salt: str, name: str) -> StoredSet:
        """A set of an API key. Raises NotFound."""
        found = self._sets.get((salt, name))
        if found is None:
            raise NotFound("there is no stored set of sequences with this name")
        return found

    def check_room(self, salt: str, name: str, num_nodes: int) -> None:
        """Raise RequestTooLarge if there is no room for a set, and NotFound if its API key is no longer valid.

        A set of the same name is not counted, because the new one replaces it.

        num_nodes: number of nodes of the set, as far as it is known.
        """
        if salt not in self._owners:
            raise NotFound("the API key of this request is no longer valid")
        others = [found for found in self.all(salt) if found.name != name]
        if len(others) >= MAX_SETS:
            raise RequestTooLarge(f"the API key has {MAX_SETS:,} sets of sequences, which is the limit; delete some")
        share = self._max_bytes // max(len(self._owners), 1)
        needed = sum(found.num_bytes for found in others) + _NODE_BYTES * num_nodes
        if needed > share:
            raise RequestTooLarge(
                f"the sets of sequences of the API key would need {needed / 2**20:,.1f} MiB of memory; the limit is "
                f"{share / 2**20:,.1f} MiB (--allowed-sequences-memory); delete some"
            )

    def put(self, found: StoredSet) -> None:
        """Store a set. It replaces a set with the same name, which requests in progress keep."""
        earlier = self._sets.get((found.owner, found.name))
        if earlier is not None:
            self._drop(earlier)
        self._sets[found.owner, found.name] = found

    def delete(self, salt: str, name: str) -> None:
        """Drop a set. Requests in progress keep it. Raises NotFound."""
        self._drop(self.get(salt, name))

    def hold(self, call: Call, name: str, model: str) -> int:
        """The id of a set, which stays with the workers until the call closes.

        model: name of the model, not of an adapter.
        Raises InvalidRequest for a name without a set, and for a set of another model; ClientGone after a disconnect.
        """
        call.check_open()
        found = self._sets.get((call.cache_salt, name))
        if found is None:
            raise InvalidRequest("`allowed_sequences` names no stored set", "allowed_sequences")
        if found.model != model:
            raise InvalidRequest(
                f"`allowed_sequences` names a set of the model `{found.model}`, not of `{model}`", "allowed_sequences"
            )
        found.users += 1
        call.on_close(lambda: self._release(found))
        return found.set_id

    def _release(self, found: StoredSet) -> None:
        found.users -= 1
        if found.is_dropped and not found.users:
            self._forget(found.set_id)

    def _drop(self, found: StoredSet) -> None:
        del self._sets[found.owner, found.name]
        found.is_dropped = True
        if not found.users:
            self._forget(found.set_id)
