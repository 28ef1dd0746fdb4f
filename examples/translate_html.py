"""POST /translate with `format` html: tags and attributes stay, and inline tags follow their words."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that offers the language pair

page = """\
<h1 id="top">The old house</h1>
<p>We like the <a href="/house">red house</a>. Run <code>make serve</code> now.</p>
<p translate="no">The garden</p>
"""
body = {"model": model, "inputs": page, "source_lang": "en", "target_lang": "fr", "format": "html"}
answer = httpx.post(f"{url}/translate", json=body, timeout=60).raise_for_status().json()
print(answer["translations"][0]["text"])
