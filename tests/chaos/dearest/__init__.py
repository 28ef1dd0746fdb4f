"""Search over the OpenAPI schema of every route for the bodies that cost the HTTP process the most time and memory.

Entry points:

    python -m tests.chaos.dearest --tries 60          search on every route and print a table
    python -m tests.chaos.dearest --corpus            measure the bodies that earlier searches have found
    search.search(server, tries, seed, only, ...)     the same search, with counts as arguments
    search.measure_corpus(server, counts, only, ...)  the corpus, alone and sixteen at once
    measure.measured_server(directory, *arguments)    a server process under the loop monitor

A body is written as a recipe of a few bytes (`recipe`). The search starts from the example of a route, makes changes
that its schema allows (`schema`), and continues with the most expensive bodies so far. The module `monitor` runs inside
the server process; a launcher installs it, so that the product has no code for it. `corpus.json` contains the recipes
that were expensive.
"""
