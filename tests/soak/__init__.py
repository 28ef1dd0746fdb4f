"""Long runs with faults, started by hand: `make soak-models`, or `python -m tests.soak.models`."""
