"""The HTTP process's side of the connection to the workers: calls, admission to the queue, choice of a worker."""
