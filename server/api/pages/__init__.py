"""Pages for browsers: the playground and `/docs`."""
