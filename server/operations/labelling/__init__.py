"""Labels of texts and of parts of texts: classes, entities, answer spans, masked words."""
