"""Parts that several families share: reading `config.json`, builders of configurations, tables of tensor names."""
