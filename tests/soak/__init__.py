"""Long runs with faults, started by hand: `make soak-models`, `make soak-loading` and `make soak-router`."""
