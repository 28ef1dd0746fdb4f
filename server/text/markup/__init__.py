"""HTML and XML: what is translated, and how the translation returns into the markup."""
