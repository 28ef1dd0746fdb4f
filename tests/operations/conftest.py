"""Fixtures of the API tests: the application in this process, with the test in place of the worker."""

from tests.api.conftest import bench, http

__all__ = ["bench", "http"]
