"""Long runs with faults, started by hand: `python -m tests.soak.models`."""
