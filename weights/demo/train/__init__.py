"""The recipe that trains the four demo models from scratch: `python -m weights.demo.train`."""
