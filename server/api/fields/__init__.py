"""Fields of request bodies: types that dialects share, descriptions, kinds of fields, and error messages."""
