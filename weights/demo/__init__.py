"""The demo models that ship with the server, and the recipe (`train`) that trains them."""
