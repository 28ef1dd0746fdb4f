"""The machine below: processor cores, memory, garbage collection, helper processes, iterations of the event loop."""
