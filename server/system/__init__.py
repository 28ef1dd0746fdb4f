"""The machine below: processor cores, memory, garbage collection, helper processes, turns of the event loop."""
