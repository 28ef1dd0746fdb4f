"""One file or package per client dialect. A dialect has `ROUTES`, and imports no other dialect."""
