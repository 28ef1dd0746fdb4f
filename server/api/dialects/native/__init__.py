"""The native dialect: the server's own routes."""
