"""Worker processes: their start, supervision by heartbeats, restart, sockets and shared weights."""
