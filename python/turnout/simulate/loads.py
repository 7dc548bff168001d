"""What experiments play, by name: blends of kinds of sessions, clients by workload, groups of samples, chat.

All lengths are those of the embedded mixture or are given here at full size; `scale` divides tokens and gaps, as there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from turnout.errors import InvalidArgument
from turnout.simulate.draft import Draft, assemble
from turnout.simulate.mixture import DRAWS, SYSTEM_TOKENS, mixture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from turnout.simulate.scenario import Scenario

CHAT_PROMPT_TOKENS: Final = 2_000
CHAT_OUTPUT_TOKENS: Final = 600
HOT_PROMPTS: Final = 16
HOT_PROMPT_TOKENS: Final = 16_384


def blend(shares: Mapping[str, float], sessions: int, *, seed: int = 0, scale: float = 8.0) -> Scenario:
    """A list of sessions of some kinds of the mixture, in random order.

    Args:
        shares: Share of the sessions by kind: `agent`, `rlvr`, `rlhf`.
        sessions: How many.
        seed: Same seed, same scenario.
        scale: Divides tokens and gaps.

    Returns:
        The scenario, one workload per kind, the shares as targets.
    """
    rng = np.random.default_rng(seed)
    names = list(shares)
    counts = np.round(sessions * np.array(list(shares.values())) / sum(shares.values())).astype(int)
    kinds = rng.permutation(np.repeat(np.arange(len(names)), counts))
    drafts = [_drawn(rng, names, int(kind), scale) for kind in kinds]
    total = sum(shares.values())
    return assemble(drafts, names, [shares[name] / total for name in names], {"workload": "blend", "scale": scale})


def clients(
    numbers: Mapping[str, int],
    each: int,
    *,
    targets: Mapping[str, float] | None = None,
    seed: int = 0,
    scale: float = 8.0,
) -> Scenario:
    """A number of clients per workload, each with one session outstanding until it has played `each`.

    What one workload has outstanding does not depend on the others, as it does in one list.

    Args:
        numbers: Clients by workload: `agent`, `rlvr`, `rlhf`.
        each: Sessions per client.
        targets: Wanted share of finished sessions by workload; default: as many as there are clients.
        seed: Same seed, same scenario; a workload's sessions do not depend on who else is there.
        scale: Divides tokens and gaps.

    Returns:
        The scenario: one root session per client, so play it with as many sessions outstanding as there are clients.
    """
    names = list(numbers)
    streams = {name: np.random.default_rng([seed, *name.encode()]) for name in names}
    drafts: list[Draft] = []
    heads: dict[tuple[str, int], int] = {}
    for _ in range(each):
        for at, name in enumerate(names):
            for client in range(numbers[name]):
                drawn = _drawn(streams[name], [name], 0, scale)
                after = heads.get((name, client))
                heads[name, client] = len(drafts)
                drafts.append(drawn._replace(workload=at, after=after))
    total = sum(numbers.values())
    wanted = [numbers[name] / total if targets is None else targets[name] for name in names]
    return assemble(drafts, names, wanted, {"workload": "clients", "scale": scale, "clients": dict(numbers)})


def groups(  # noqa: PLR0913 - the shape of a group
    number: int,
    *,
    samples: int = 16,
    prompt_tokens: float = 30_000,
    output_tokens: float = 8_000,
    seed: int = 0,
    scale: float = 8.0,
) -> Scenario:
    """Groups of samples of one prompt, one turn each.

    Args:
        number: Groups.
        samples: Samples per group; session s belongs to group s // samples.
        prompt_tokens: Length of the prompt that the samples of a group share, at full size.
        output_tokens: Median length of an answer, at full size, log-normal with sigma 0.65.
        seed: Same seed, same scenario.
        scale: Divides tokens.

    Returns:
        The scenario of the one workload `group`.
    """
    rng = np.random.default_rng(seed)
    drafts = []
    for group in range(number):
        prompt = np.array([prompt_tokens / scale])
        outputs = rng.lognormal(np.log(output_tokens / scale), 0.65, (samples, 1))
        drafts += [Draft(0, prompt, output, np.zeros(1), group, int(prompt[0])) for output in outputs]
    return assemble(drafts, ["group"], [1.0], {"workload": "groups", "scale": scale, "samples": samples})


def chat(sessions: int, *, seed: int = 0, scale: float = 1.0) -> Scenario:
    """Single turns of which no two share a token: nothing that any cache could serve.

    Args:
        sessions: How many.
        seed: Same seed, same scenario.
        scale: Divides tokens.

    Returns:
        The scenario of the one workload `chat`.
    """
    rng = np.random.default_rng(seed)
    prompt = rng.lognormal(np.log(CHAT_PROMPT_TOKENS / scale), 0.8, sessions)
    output = rng.lognormal(np.log(CHAT_OUTPUT_TOKENS / scale), 0.8, sessions)
    zero = np.zeros(1)
    drafts = [Draft(0, prompt[at : at + 1], output[at : at + 1], zero) for at in range(sessions)]
    return assemble(drafts, ["chat"], [1.0], {"workload": "chat", "scale": scale})


def hot(sessions: int, *, exponent: float = 1.5, seed: int = 0, scale: float = 8.0) -> Scenario:
    """Agents whose long system prompts are of very unequal popularity.

    Args:
        sessions: How many.
        exponent: Prompt number n of 16 is chosen in proportion to n^-exponent.
        seed: Same seed, same scenario.
        scale: Divides tokens and gaps.

    Returns:
        The scenario of the one workload `agent`; the system prompts take 16k tokens at full size.
    """
    rng = np.random.default_rng(seed)
    weight = np.arange(1, HOT_PROMPTS + 1.0) ** -exponent
    chosen = rng.choice(HOT_PROMPTS, sessions, p=weight / weight.sum())
    longer = (HOT_PROMPT_TOKENS - SYSTEM_TOKENS) / scale
    drafts = []
    for which in chosen.tolist():
        draft = _drawn(rng, ["agent"], 0, scale)
        drafts.append(
            draft._replace(
                prompt_tokens=draft.prompt_tokens + longer, shared=which, shared_tokens=int(HOT_PROMPT_TOKENS / scale)
            )
        )
    return assemble(drafts, ["agent"], [1.0], {"workload": "hot", "scale": scale, "exponent": exponent})


def mixed(sessions: int, *, mislabelled: float = 0.0, seed: int = 0, scale: float = 8.0) -> Scenario:
    """The embedded mixture, of which some sessions carry the name of another workload.

    Args:
        sessions: How many.
        mislabelled: Share of the sessions whose names are exchanged among each other, 0..1.
        seed: Same seed, same scenario.
        scale: Divides tokens and gaps.

    Returns:
        The scenario; the number of sessions by name stays as it was.
    """
    scenario = mixture(sessions, seed=seed, scale=scale)
    if not mislabelled:
        return scenario
    rng = np.random.default_rng([seed, 1])
    wrong = np.flatnonzero(rng.random(sessions) < mislabelled)
    labels = scenario.session_workload.copy()
    labels[wrong] = rng.permutation(labels[wrong])
    return dataclasses.replace(scenario, session_workload=labels)


def batch(sessions: int, *, longest_first: bool = False, seed: int = 0, scale: float = 8.0) -> Scenario:
    """The embedded mixture as one batch.

    Args:
        sessions: How many.
        longest_first: Whether the client starts the sessions with the most output first, which it cannot know in life.
        seed: Same seed, same scenario.
        scale: Divides tokens and gaps.

    Returns:
        The scenario.
    """
    scenario = mixture(sessions, seed=seed, scale=scale)
    if not longest_first:
        return scenario
    output = np.add.reduceat(scenario.turn_output_tokens, scenario.session_first_turn[:-1])
    order = np.argsort(-output, kind="stable")
    first, runs = scenario.session_first_turn, scenario.turn_first_run
    turns = np.concatenate([np.arange(first[at], first[at + 1]) for at in order])
    pieces = np.concatenate([np.arange(runs[turn], runs[turn + 1]) for turn in turns])
    return dataclasses.replace(
        scenario,
        session_workload=scenario.session_workload[order],
        session_first_turn=np.concatenate(([0], np.cumsum(np.diff(first)[order]))),
        turn_prompt_tokens=scenario.turn_prompt_tokens[turns],
        turn_output_tokens=scenario.turn_output_tokens[turns],
        turn_gap_s=scenario.turn_gap_s[turns],
        turn_first_run=np.concatenate(([0], np.cumsum(np.diff(runs)[turns]))),
        run_first_id=scenario.run_first_id[pieces],
        run_blocks=scenario.run_blocks[pieces],
        run_shared=scenario.run_shared[pieces],
    )


LOADS: Final[dict[str, Callable[..., Scenario]]] = {
    "mixed": mixed,
    "blend": blend,
    "clients": clients,
    "groups": groups,
    "chat": chat,
    "hot": hot,
    "batch": batch,
}
"""The loads by name."""


def load(name: str, arguments: Mapping[str, Any], seed: int) -> Scenario:
    """The load of this name.

    Args:
        name: A key of `LOADS`.
        arguments: Its arguments but the seed.
        seed: Same seed, same scenario.

    Returns:
        The scenario.

    Raises:
        InvalidArgument: There is no such load.

    Example:
        >>> load("chat", {"sessions": 3}, 0).turns
        3
    """
    if name not in LOADS:
        raise InvalidArgument(f"load: got {name!r}, accepted is {', '.join(LOADS)}", "load", name, ", ".join(LOADS))
    return LOADS[name](**arguments, seed=seed)


def _drawn(rng: np.random.Generator, names: list[str], kind: int, scale: float) -> Draft:
    """One session of a kind of the mixture."""
    if names[kind] not in DRAWS:
        raise InvalidArgument(f"kind: got {names[kind]!r}, accepted is {', '.join(DRAWS)}")
    session = DRAWS[names[kind]](rng)
    agent = names[kind] == "agent"
    return Draft(
        kind,
        session.prompt_tokens / scale,
        session.output_tokens / scale,
        session.gap_s / scale,
        0 if agent else None,
        int(SYSTEM_TOKENS / scale) if agent else 0,
    )
