"""One connection of a client: its HTTP/1.1 protocol, early refusals, TLS, and how it is closed."""
