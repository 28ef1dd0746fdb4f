"""The worker process itself: its main loop, its messages, loading of models, memory of the device."""
