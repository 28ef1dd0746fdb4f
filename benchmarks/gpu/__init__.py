"""Measure rates of steps, engine and server on a GPU, and compare them with the limits of the device and with peers."""
