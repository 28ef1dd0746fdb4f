"""Runs the steps of all models of a device: chooses the next model, and handles requests and results around a step."""
