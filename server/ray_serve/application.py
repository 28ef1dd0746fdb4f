"""The deployments of the Ray Serve application and their options."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from server.ray_serve.arguments import read
from server.ray_serve.ingress import Ingress
from server.ray_serve.replica import Replica

MAX_ONGOING_REQUESTS = 8192
"""Most requests that Ray Serve sends to one replica at a time.

It is more than a replica admits, so that the replica itself refuses excess requests with `Retry-After`.
"""
STOP_SECONDS = 10.0
"""Time that a replica gets to stop its workers, in addition to `grace_seconds` for its requests."""
ROUTING_SECONDS = 1.0
"""Time between two reports of a replica about its models."""


def application(arguments: dict[str, Any]) -> serve.Application:
    """Create the deployments `Ingress` and `Replica`, and bind them to an application.

    arguments: settings of Triptych by name, and `config`, the path of a TOML file with settings.
    Raises StartError for an unknown setting or an invalid value.
    """
    settings = read(arguments)
    replicas = serve.deployment(
        Replica,
        name="triptych",
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=settings.grace_seconds + STOP_SECONDS,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": 1},
        request_router_config=RequestRouterConfig(
            request_router_class="server.ray_serve.router:LoadedModelRouter",
            request_routing_stats_period_s=ROUTING_SECONDS,
        ),
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="ingress",
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=settings.grace_seconds + STOP_SECONDS,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": 0.1},
    )
    return ingress.bind(replicas.bind(arguments), arguments)
