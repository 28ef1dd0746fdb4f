"""Operations that compute vectors of texts, or rank texts by their relevance to a query."""
