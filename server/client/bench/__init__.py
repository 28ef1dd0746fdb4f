"""`triptych bench`: measure a server under load, with OpenAI's API or Triptych's native API."""
