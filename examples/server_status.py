"""GET /health, /ready, /info and /metrics: the state of a server, for load balancers, operators and Prometheus."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")

for route in ("/health", "/ready"):
    print(f"{route}:", httpx.get(url + route, timeout=10).status_code)

info = httpx.get(f"{url}/info", timeout=10).raise_for_status().json()
print("version:", info["version"], "on", info["device"])
for model in info["models"]:
    print(f"{model['name']}: {model['family']}, {model['parameters']:,} parameters, routes {' '.join(model['routes'])}")

metrics = httpx.get(f"{url}/metrics", timeout=10).raise_for_status().text
for line in metrics.splitlines():
    if line.startswith("triptych_kv_blocks_total"):
        print(line)
