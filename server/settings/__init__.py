"""The settings of the server, without torch and without an HTTP framework.

`fields` names them, `entries` reads their values, `checks` judges them, `settings` has the class that all others use,
and `read` collects values from the command line, the environment and a file.
"""
