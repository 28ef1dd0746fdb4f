"""POST /translate, POST /detect and GET /languages with the libretranslatepy package."""

import os

from libretranslatepy import LibreTranslateAPI

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
key = os.environ.get("TRIPTYCH_API_KEY")  # sent in the field `api_key`

client = LibreTranslateAPI(url, key)
for language in client.languages():
    if language["targets"]:  # without targets, texts are only translated into the language
        print(f"{language['name']} to {', '.join(language['targets'])}")
text = "The garden is small."
print("detected:", client.detect(text)[0]["language"])
print("translation:", client.translate(text, "auto", "fr"))
