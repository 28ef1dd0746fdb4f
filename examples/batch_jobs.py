"""POST /embed and /translate for thousands of texts: a few requests at a time, and retries while the server is busy."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
client = httpx.Client(base_url=url, timeout=600)


def post(path, inputs, **fields):
    while True:
        response = client.post(path, json={"inputs": inputs, **fields})
        if response.status_code not in (429, 503):
            return response.raise_for_status().json()
        time.sleep(float(response.headers.get("retry-after", 1)))


def parts(texts, size):
    return [texts[start : start + size] for start in range(0, len(texts), size)]


sentences = [f"The cat sees {number} dogs." for number in range(5000)]
texts = ["I am a student", "The garden is small.", "The cat sleeps.", "The dog runs."] * 125

with ThreadPoolExecutor(4) as pool:
    answers = pool.map(lambda part: post("/embed", part), parts(sentences, 250))
    vectors = [vector for answer in answers for vector in answer]
    answers = pool.map(lambda part: post("/translate", part, source_lang="en", target_lang="fr"), parts(texts, 50))
    translations = [translation["text"] for answer in answers for translation in answer["translations"]]

print(len(vectors), "vectors of", len(vectors[0]), "numbers")
print(len(translations), "translations:", translations[0], "...", translations[-1])
