"""The native dialect: the routes of Triptych's own API."""
