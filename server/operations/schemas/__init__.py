"""JSON schemas of tools and answers: what a grammar can enforce of them."""
