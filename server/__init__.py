"""Triptych's server: an HTTP process, and an engine in a worker process. They exchange messages over a socket."""
