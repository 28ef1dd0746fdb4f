"""POST /fill_mask: the most likely words for a masked position. Needs a masked language model."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded masked language model
mask = os.environ.get("TRIPTYCH_MASK", "[MASK]")  # RoBERTa and its relatives write <mask>

body = {"model": model, "inputs": f"The cat {mask} on the mat.", "top_k": 3}
for word in httpx.post(f"{url}/fill_mask", json=body, timeout=60).raise_for_status().json():
    print(f"{word['score']:.3f}: {word['sequence']}")
