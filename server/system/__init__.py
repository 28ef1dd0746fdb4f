"""Access to the machine: processor cores, memory, garbage collection, helper processes, the event loop, terminals."""
