"""JSON schemas of tools and answers: find the part that a grammar can enforce, and compile it."""
