"""Data that the HTTP process stores for its clients: answers, documents in translation, suggested translations."""
