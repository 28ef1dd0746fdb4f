"""The worker process: its main loop, its connection, models on demand, and division of the memory."""
