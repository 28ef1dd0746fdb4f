"""Fields of request bodies: types that dialects share, descriptions, kinds, and messages about wrong values."""
