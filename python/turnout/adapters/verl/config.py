"""What the YAML file at `rollout.router_config_path` may say."""

from __future__ import annotations

import dataclasses
import importlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, get_args

from turnout.config import Replica, Workload
from turnout.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

from typing import Literal

Tokens = Literal["prompt", "none"]
Turns = Literal["many", "one"]


@dataclass(frozen=True, slots=True)
class VerlConfig:
    """The settings of the balancer, one per key of the file.

    Attributes:
        policy: Name of a shipped policy, or `package.module:Class`.
        kv_tokens: KV capacity of each server, tokens; inf = unknown: nobody ever waits.
        prefill_tokens_per_s: Prefill rate of each server, for the placement cost.
        workloads: Classes of sessions with their target shares; a share may be null.
        tokens: `prompt`: the balancer is sent the prompt of every turn. `none`: only ids, which is quicker and blind.
        prompt_tokens: With `none`, the prompt length that is assumed, tokens.
        max_new_tokens: Upper bound of the output where the request names none, tokens.
        turns: `one`: a trajectory is one turn, its session ends with it. `many`: it ends when the plug-in says so, else
            after `session_idle_s`.
        session_idle_s: Idleness after which a session ends, s.
        deadline_s: Longest wait, s; after it a turn is routed without being tracked. None = it waits.
        describe: `package.module:function`, called as `function(request_id, fields)`; what it answers is passed to
            `Router.submit`: `workload`, `priority`, `namespace` and so on.
        feedback: Whether the plug-in may tell outputs, cached tokens, weights and ends of trajectories.
        journal: File that keeps the state over restarts of the actor.
        reattach_s: After a restart: time after which turns that ran before are given up, s.
        health_s: Time between looks whether the servers' actors live, s.
        block_tokens: Tokens per index block.

    Example:
        >>> VerlConfig.of({"router_class": "turnout.adapters.verl.TurnoutBalancer", "kv_tokens": 1000}).policy
        'block-time'
    """

    policy: str = "block-time"
    kv_tokens: float = math.inf
    prefill_tokens_per_s: float = 20_000.0
    workloads: dict[str, float | None] = field(default_factory=dict)
    tokens: Tokens = "prompt"
    prompt_tokens: int = 1_024
    max_new_tokens: int | None = None
    turns: Turns = "many"
    session_idle_s: float = 600.0
    deadline_s: float | None = None
    describe: str | None = None
    feedback: bool = True
    journal: str | None = None
    reattach_s: float = 120.0
    health_s: float = 5.0
    block_tokens: int = 16

    @classmethod
    def of(cls, loaded: Mapping[str, Any]) -> Self:
        """Read the mapping that verl loads from the file.

        Args:
            loaded: Its keys and values; `router_class` is verl's own.

        Returns:
            The settings.

        Raises:
            InvalidArgument: A key is not known, or a value is none of those accepted.
        """
        known = {each.name for each in dataclasses.fields(cls)}
        given = {name: value for name, value in loaded.items() if name != "router_class"}
        for name in given:
            if name not in known:
                accepted = ", ".join(sorted(known))
                raise InvalidArgument(f"{name}: no such setting, accepted is {accepted}", name, "", accepted)
        config = cls(**given)
        for name, kind in (("tokens", Tokens), ("turns", Turns)):
            if getattr(config, name) not in get_args(kind):
                shown, accepted = repr(getattr(config, name)), " or ".join(map(repr, get_args(kind)))
                raise InvalidArgument(f"{name}: got {shown}, accepted is {accepted}", name, shown, accepted)
        config.describer()
        return config

    def replica(self, server_id: str) -> Replica:
        """A server as a replica.

        Args:
            server_id: Its `ip:port`.

        Returns:
            The replica.
        """
        return Replica(server_id, kv_tokens=self.kv_tokens, prefill_tokens_per_s=self.prefill_tokens_per_s)

    def workload_list(self) -> list[Workload]:
        """The workloads; none = one called `default`."""
        return [Workload(name, target=math.nan if share is None else share) for name, share in self.workloads.items()]

    def describer(self) -> Callable[[str, Mapping[str, Any]], Mapping[str, Any]] | None:
        """The user's function.

        Returns:
            It; None where there is none.

        Raises:
            InvalidArgument: It cannot be imported.
        """
        if self.describe is None:
            return None
        module, _, name = self.describe.partition(":")
        try:
            function: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = getattr(
                importlib.import_module(module), name
            )
        except (ImportError, AttributeError, ValueError) as error:
            accepted = "package.module:function that can be imported"
            message = f"describe: got {self.describe!r} ({error}), accepted is {accepted}"
            raise InvalidArgument(message, "describe", repr(self.describe), accepted) from None
        return function

    def arguments(self, request_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What is submitted for one `generate` of verl, beside the prompt.

        Args:
            request_id: Its request id: the trajectory's.
            fields: What is known of it: `sampling_params`, `priority`, and what the sample says.

        Returns:
            Arguments of `turnout.Router.submit`.
        """
        sampling = fields.get("sampling_params") or {}
        limit = sampling.get("max_tokens", sampling.get("max_new_tokens")) or self.max_new_tokens
        arguments: dict[str, Any] = {"session": request_id, "deadline_s": self.deadline_s}
        if limit is not None:
            arguments["max_new_tokens"] = int(limit)
        if fields.get("priority"):
            arguments["priority"] = -int(fields["priority"])  # verl's smaller ones go first
        describe = self.describer()
        if describe is not None:
            arguments |= describe(request_id, fields)
        return arguments
