"""Commands that work on a model themselves: quantize, `check --profile`, and a server for one command."""
