"""Triptych as a Ray Serve application, for more than one machine (`pip install 'triptych[ray]'`).

    serve run server.ray_serve:build models=llm=/models/llm

Two deployments. `Replica` is a whole server without a listener: the HTTP application and its worker process. `Ingress`
receives requests from the proxies of Ray Serve and forwards each one to a replica. It sends a request to another
replica if the first one is lost before the answer has begun. Ray places, scales and replaces the replicas.
See docs/ray.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray import serve


def build(arguments: dict[str, Any]) -> serve.Application:
    """Build the application: `serve run server.ray_serve:build NAME=VALUE ...`, or `args` of a configuration file.

    arguments: settings of Triptych by name, and `config`, a TOML file that exists on every machine. Each replica also
        reads `TRIPTYCH_*` of its environment, which is the place for API keys.
    Options of the deployments `triptych` and `ingress` (replicas, CPUs, GPUs, autoscaling) belong in the configuration.
    Raises StartError for an unknown setting or an invalid value.
    """
    from server.ray_serve.application import application

    return application(arguments)
