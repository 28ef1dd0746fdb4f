"""HTML and XML: find the sentences to translate in a document, and put their translations and tags back into it."""
