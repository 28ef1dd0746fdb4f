"""What the HTTP process keeps for its clients: answers, documents in translation, suggested translations."""
