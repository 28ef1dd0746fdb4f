"""`triptych bench`: measure a server under load, with the routes of OpenAI or those of Triptych."""
