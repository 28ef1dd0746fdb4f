"""Which sequences a step computes: the scheduler, its budgets and the measured costs behind them."""
