"""Code that several families use: reading `config.json`, building configurations, and rules for tensor names."""
