"""The HTTP process's side of the boundary: calls, admission to the queue, and the choice of a worker."""
