"""HTTP: the application, its middleware, server-sent events, and one dialect per client API."""
