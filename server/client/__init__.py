"""The commands that talk to a server: generate, chat, translate, embed, classify and bench.

They know HTTP and nothing of the server behind it. `server.cli` gives them a function that runs a server in this
process, for use without a server.
"""
