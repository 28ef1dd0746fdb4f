"""The commands that send requests to a server: generate, chat, translate, embed, classify, rerank, transcribe, bench.

They use HTTP only, and none of the code that answers requests. `server.cli` gives them a function that runs a server
in this process, for `--load`.
"""
