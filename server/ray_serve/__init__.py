"""Triptych as a Ray Serve application, for more than one machine (`pip install 'triptych[ray]'`).

    serve run server.ray_serve:build models=llm=/models/llm

It has two deployments. `Replica` is a whole server without a listening socket: the HTTP application and its worker
processes. `Ingress` receives requests from the proxies of Ray Serve and forwards each one to a replica. If the replica
is lost before the answer has begun, it sends the request to another replica. Ray places, scales and replaces the
replicas. See docs/ray.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray import serve


def build(arguments: dict[str, Any]) -> serve.Application:
    """Build the application. Called by `serve run server.ray_serve:build NAME=VALUE ...`, or for a configuration file.

    arguments: settings of Triptych by name, and `config`, the path of a TOML file that exists on every machine. Each
        replica also reads `TRIPTYCH_*` of its environment, which is the place for API keys.
    Options of the deployments `triptych` and `ingress` (replicas, CPUs, GPUs, autoscaling) belong in Ray's
    configuration file. Raises StartError for an unknown setting or an invalid value.
    """
    from server.ray_serve.application import application

    return application(arguments)
