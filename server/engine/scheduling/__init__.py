"""Decides which sequences a step computes: the scheduler, its budgets, and the measured costs of steps."""
