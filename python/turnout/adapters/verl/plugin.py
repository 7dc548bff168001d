"""Loaded by verl through the entry points `verl.plugins`: its clients tell Turnout what verl's protocol omits.

Nothing is imported and nothing changes until verl imports its own client and agent loop; and a client whose balancer
is not Turnout's goes on as before.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

CLIENT: Final = "verl.workers.rollout.llm_server"
AGENT_LOOP: Final = "verl.experimental.agent_loop.agent_loop"
FEEDBACK: Final = "turnout"


def patch_client(module: ModuleType) -> None:
    """Let `LLMServerClient` ask and tell in Turnout's way where its balancer is Turnout's.

    Args:
        module: `verl.workers.rollout.llm_server`.
    """
    cls = module.LLMServerClient
    acquire, release = cls._acquire_server, cls._release_server

    @functools.wraps(acquire)
    async def _acquire_server(self: Any, request_id: str, **extra: Any) -> tuple[str, Any]:  # noqa: ANN401 - verl's
        if self._lb_require_release_fields is None:
            fields = await self._load_balancer.require_release_fields.remote()
            self._lb_require_acquire_fields = list(await self._load_balancer.require_acquire_fields.remote())
            self._lb_require_release_fields = list(fields)
        if FEEDBACK in self._lb_require_release_fields and extra.get("prompt_ids") is not None:
            from turnout.adapters.verl.client import feedback_of

            return await feedback_of(self).acquire(request_id, extra)
        answer: tuple[str, Any] = await acquire(self, request_id, **extra)
        return answer

    @functools.wraps(release)
    def _release_server(self: Any, server_id: str, request_id: str | None = None) -> None:  # noqa: ANN401 - verl's
        from turnout.adapters.verl.client import Leased, feedback_of

        if isinstance(server_id, Leased):
            feedback_of(self).release(server_id)
        else:
            release(self, server_id, request_id=request_id)

    cls._acquire_server, cls._release_server = _acquire_server, _release_server


def patch_agent_loop(module: ModuleType) -> None:
    """Let the turns of a trajectory know their sample, and end their session with it.

    Args:
        module: `verl.experimental.agent_loop.agent_loop`.
    """
    cls = module.AgentLoopWorker
    run = cls._run_agent_loop

    @functools.wraps(run)
    async def _run_agent_loop(self: Any, sampling_params: Any, info: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - verl's
        from turnout.adapters.verl.client import trajectory

        with trajectory({**kwargs, "trajectory": info}):
            return await run(self, sampling_params, info, *args, **kwargs)

    cls._run_agent_loop = _run_agent_loop


PATCHES: Final[dict[str, Callable[[ModuleType], None]]] = {CLIENT: patch_client, AGENT_LOOP: patch_agent_loop}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Patches a module of verl right after it was imported, by whomever."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        if name not in PATCHES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader, PATCHES[name])
        return spec


class _Patching(importlib.abc.Loader):
    def __init__(self, loader: Any, patch: Callable[[ModuleType], None]) -> None:  # noqa: ANN401 - any loader
        self._loader, self._patch = loader, patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the loader
        return getattr(self._loader, name)


def install() -> None:
    """Patch what verl has imported, and what it will import. Doing so again changes nothing."""
    if any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        return
    for name, patch in PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport())


install()
