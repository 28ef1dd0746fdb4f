"""The steps of all models of a device: which model runs next, and what happens before and after a step."""
