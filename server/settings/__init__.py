"""The settings of the server, without torch and without an HTTP framework.

`fields` defines the settings, `entries` parses their values, and `checks` refuses invalid combinations. `settings` has
the class that the other modules use. `read` collects values from the command line, the environment and a file.
"""
