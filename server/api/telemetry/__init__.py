"""What an operator sees of requests: metrics, traces and the access log."""
