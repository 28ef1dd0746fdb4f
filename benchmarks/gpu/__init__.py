"""Measurements of a GPU: rates of steps, of the engine and of the server, beside the limits of the device and peers."""
