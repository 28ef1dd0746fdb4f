"""Bodies of requests and responses: JSON, forms and server-sent events, each within limits of bytes and time."""
