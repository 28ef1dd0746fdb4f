"""The request router of the replicas: Ray Serve asks it which replicas may get a request. See `multiplexing.ranks`."""

from __future__ import annotations

import random

from ray.serve.request_router import LocalityMixin, PendingRequest, RequestRouter, RunningReplica

from server.ray_serve.multiplexing import ReplicaModels, ranks


class LoadedModelRouter(LocalityMixin, RequestRouter):  # type: ignore[misc]  # mypy reads no types of Ray
    """Sends a request to a replica that has its model. A request without a model goes to any replica.

    Of the replicas that are equally good, Ray Serve takes the one with the fewest requests. It asks again, after a
    pause, while all of them are full.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        model = "" if pending_request is None else pending_request.metadata.multiplexed_model_id
        if not model:
            known = self.curr_replicas
            allowed = [known[name] for name in self.apply_locality_routing(pending_request) if name in known]
            return [random.sample(allowed, min(len(allowed), 2))]
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        reports = {name: ReplicaModels.of(replica.routing_stats) for name, replica in by_name.items()}
        return [[by_name[name] for name in group] for group in ranks(model, reports)]
