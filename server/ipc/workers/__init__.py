"""Worker processes: start, heartbeat, restart, sockets and shared memory."""
