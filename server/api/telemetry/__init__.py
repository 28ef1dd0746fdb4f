"""Data about requests for the operator: metrics, traces and the access log."""
