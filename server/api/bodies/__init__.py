"""Bodies of requests and responses: JSON, forms and server-sent events.

Request bodies have limits of size and time; responses have a limit for clients that stop reading.
"""
