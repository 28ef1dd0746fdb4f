"""The boundary between the HTTP process and the worker process: messages, the client of the engine, the supervisor."""
