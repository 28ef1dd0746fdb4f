"""Parts of several families: reading `config.json`, building configurations, tables of tensor names."""
