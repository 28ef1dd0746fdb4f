"""POST /v2/rerank with the cohere package: documents by their relevance to a question."""

import os

import cohere

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL", "cross-encoder")
client = cohere.ClientV2(base_url=url, api_key=os.environ.get("TRIPTYCH_API_KEY", "not-needed"))
documents = ["Foxes live in forests and fields.", "Paris is the capital of France.", "A fox is a small wild animal."]

answer = client.rerank(model=model, query="Where do foxes live?", documents=documents, top_n=2)
for result in answer.results:
    print(f"{result.relevance_score:.3f}: {documents[result.index]}")
