"""Builds and runs steps on the device: batches of a schedule, captured steps, copies to and from the host."""
