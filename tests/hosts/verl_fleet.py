"""Fake inference servers behind verl's real manager, clients and routers."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import ray
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import LLMServerManager


def answer(**fields):
    """The fields of verl's `TokenOutput`, without an import of verl in every server's process."""
    return SimpleNamespace(log_probs=None, routed_experts=None, num_preempted=None, **fields)


class Server:
    """Answers with as many tokens as asked for; notes what it was asked."""

    def __init__(self, name):
        self.name, self.step, self.prompts = name, 1, []
        self.running = self.peak = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = self.aborts = False

    async def generate(self, request_id, *, prompt_ids, sampling_params, **extra):
        self.prompts.append(len(prompt_ids))
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            if self.fails:
                raise ValueError("the engine failed")
            fields = {"global_steps": self.step, "num_cached_tokens": 0, "served_by": self.name}
            tokens = list(range(sampling_params.get("max_tokens", 4)))
            stopped = "aborted" if self.aborts else "completed"
            return answer(token_ids=tokens, stop_reason=stopped, extra_fields=fields)
        finally:
            self.running -= 1

    async def set(self, **values):
        """Change how it behaves; `gate` False stops answers, True lets them go."""
        for name, value in values.items():
            if name == "gate":
                (self.gate.set if value else self.gate.clear)()
            else:
                setattr(self, name, value)

    async def seen(self):
        return {"prompts": self.prompts, "peak": self.peak, "running": self.running}

    async def die(self):
        os._exit(1)


class FakeReplica:
    """What verl's manager needs of a replica: an address and the handle of its server."""

    def __init__(self, replica_rank, config, model_config, gpus_per_node):
        self.replica_rank = replica_rank
        self._server_address = f"10.0.0.{replica_rank}:8000"

    async def init_standalone(self):
        self._server_handle = ray.remote(max_concurrency=10_000, num_cpus=0)(Server).remote(self._server_address)


class Manager(LLMServerManager):
    rollout_replica_class = FakeReplica


async def manager(tmp_path, servers=2, **settings):
    """verl's own manager over fake servers, with the balancer that the YAML file names."""
    path = tmp_path / "turnout.yaml"
    path.write_text(OmegaConf.to_yaml({"router_class": "turnout.adapters.verl.TurnoutBalancer", **settings}))
    rollout = {
        "name": "vllm",
        "nnodes": 1,
        "n_gpus_per_node": servers,
        "tensor_model_parallel_size": 1,
        "data_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "disaggregation": {"enabled": False},
        "prometheus": {"enable": False},
        "disable_log_stats": True,
        "response_length": 64,
        "router_config_path": str(path),
    }
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}})
    instance = Manager(config)
    await instance._initialize_llm_servers()
    await instance._init_global_load_balancer()
    return instance


def stop(instance):
    for handle in [instance.global_load_balancer, *instance.server_handles]:
        ray.kill(handle)
