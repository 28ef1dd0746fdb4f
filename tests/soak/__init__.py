"""Long runs with faults, started by hand: `make soak-models` and `make soak-loading`."""
