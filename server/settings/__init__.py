"""The settings of the server: `fields` names them, `entries` reads their values, `checks` judges them, `read` collects
them from the command line, the environment and a file. Imports no torch and no HTTP framework.
"""
