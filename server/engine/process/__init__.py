"""The worker process: its main loop, its connection, loading of models, and division of the memory."""
