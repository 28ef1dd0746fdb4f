"""Triptych's server: HTTP in front, an engine in a process of its own behind, and the wall of messages between."""
