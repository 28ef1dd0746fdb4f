"""The boundary between the HTTP process and the workers: messages, the engine client, and worker processes."""
