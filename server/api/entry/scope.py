"""Keys of the ASGI scope under which the parts of the server pass on facts about a request."""

from __future__ import annotations

KEY_LIMITS = "triptych.key_limits"
"""The `KeyLimits` of the request's API key. Missing if no key is required."""
CACHE_SALT = "triptych.cache_salt"
"""The salt of the request's API key. Missing until the key was checked."""
CALL = "triptych.call"
"""The engine work of the request. Missing if the request never reached an operation."""
OPERATION = "triptych.operation"
"""Name of the operation of a request that has engine work."""
REFUSAL = "triptych.refusal"
"""The `Refusal` of a request that was refused. Missing for others."""
TRACE = "triptych.trace"
"""The span of the request. Missing unless it is traced."""
