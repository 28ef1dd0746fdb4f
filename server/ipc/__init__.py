"""The wall between the HTTP process and the engine's process: messages, and who starts and watches the worker."""
