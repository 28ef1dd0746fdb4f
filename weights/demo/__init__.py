"""The demo models of the server, and the recipe (`train`) that trains them."""
