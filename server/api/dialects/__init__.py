"""One file or package per client dialect: the API of another server, or our own. A dialect has a table `ROUTES`.

No dialect imports another one.
"""
