"""POST /v2/translate and GET /v2/languages with the deepl package: text, then HTML whose tags stay in place."""

import os

import deepl

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
key = os.environ.get("TRIPTYCH_API_KEY", "not-needed")  # the package requires a key, the server only if it has one

client = deepl.Translator(key, server_url=url)
print("languages:", ", ".join(language.name for language in client.get_target_languages()))
result = client.translate_text("The garden is small.", target_lang="FR")
print(f"from {result.detected_source_lang}: {result.text}")
document = '<p class="intro">We like the <b>red</b> house.</p>'
print("html:", client.translate_text(document, target_lang="FR", tag_handling="html").text)
