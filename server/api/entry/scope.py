"""Keys in the ASGI scope under which parts of the server store data about a request for other parts."""

from __future__ import annotations

KEY_LIMITS = "triptych.key_limits"
"""The `KeyLimits` of the request's API key. Absent if the request needs no key."""
CACHE_SALT = "triptych.cache_salt"
"""Text that separates the prefix cache entries of different API keys. Absent until the key was checked."""
CALL = "triptych.call"
"""The `Call` that groups the engine's work for the request. Absent if the request never reached an operation."""
OPERATION = "triptych.operation"
"""Name of the request's operation, such as `generate`. Present together with `CALL`."""
REFUSAL = "triptych.refusal"
"""The `Refusal` of a request that was refused for lack of capacity. Absent for other requests."""
TRACE = "triptych.trace"
"""The trace span of the request. Absent unless the request is traced."""
