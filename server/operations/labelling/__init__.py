"""Operations that label texts or parts of texts: classes, entities, answer spans, words for a mask."""
