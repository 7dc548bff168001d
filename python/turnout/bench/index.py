"""The prefix index: lookups, peeks, extensions and memory beside their bounds; and what others take for the same."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

import turnout
from turnout.bench.measure import Row, best_ns, best_of_each_ns
from turnout.bench.rivals import BLOCK_TOKENS, installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

VOCABULARY = 150_000
LONG, SHORT, APPENDED = 8_192, 1_536, 512
"""Tokens of an agent's prompt, of a GRPO prompt, and of what one turn adds."""
KEPT_PROMPTS = 64
"""Agent prompts that are kept to be looked up whole."""


def run(*, full: bool = False, seed: int = 0, report: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Measure everything.

    Args:
        full: The sizes of a large fleet: 10,000 agent sessions and 1,000,000 cold ones; minutes and gigabytes.
        seed: Seed of the tokens.
        report: Told what is measured next.

    Returns:
        The rows.
    """
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for title, part in [
        ("calls", _calls),
        ("batches", _batches),
        ("replicas", _replicas),
        ("decisions", _decisions),
        ("rivals", _rivals),
    ]:
        report(title)
        rows.extend(part(rng))
    report("GRPO groups")
    rows.extend(_groups(rng, groups=512 if full else 64))
    report("agent sessions")
    rows.extend(_agents(rng, sessions=10_000 if full else 500))
    report("many sessions")
    rows.extend(_many(rng, sessions=1_000_000 if full else 50_000))
    return rows


def _fleet(replicas: int, kv_tokens: float = 1e10) -> turnout.PrefixIndex:
    return turnout.PrefixIndex([turnout.Replica(f"r{at}", kv_tokens=kv_tokens) for at in range(replicas)])


def _tokens(rng: np.random.Generator, n: int) -> NDArray[np.uint32]:
    return rng.integers(0, VOCABULARY, n, dtype=np.uint32)


def _calls(rng: np.random.Generator) -> Iterator[Row]:
    """Single calls from Python."""
    index, empty = _fleet(8), _fleet(8)
    prompt = _tokens(rng, LONG)
    history = index.open(prompt, replica=3)
    hashed = index.prompt(prompt)
    noop = best_ns(len, hashed, calls=100_000)
    yield Row("peek a session", best_ns(index.peek, history, calls=100_000), "ns", "no-op call", noop)
    for n in (LONG, SHORT):
        part = prompt[:n].copy()
        hashing = best_ns(empty.lookup, part, calls=10_000)
        yield Row(f"call and hash {n} tokens", hashing, "ns", "compare the bytes", _compare(part))
        for kind, given in [("uint32", part), ("int64", part.astype(np.int64)), ("list", part.tolist())]:
            figure = best_ns(index.lookup, given, calls=200 if kind == "list" else 5_000)
            yield Row(f"lookup {n} tokens, {kind}", figure, "ns", "call and hash", hashing)
    figure = best_ns(index.lookup, hashed, calls=20_000)
    yield Row(f"lookup {LONG} tokens, hashed before", figure, "ns", "no-op call", noop)
    new = _tokens(rng, APPENDED)
    hashing = best_ns(empty.lookup, new, calls=20_000)
    for kind, given in [("uint32", new), ("list", new.tolist())]:
        grown = [index.open(prompt, replica=3) for _ in range(200)]
        for at in grown:  # so that each has a run of its own, with room to grow
            index.extend(at, prompt[: 2 * APPENDED], 3)
        figure = best_of_each_ns(lambda at, given=given: index.extend(at, given, 3), grown)
        yield Row(f"extend by {APPENDED} tokens, {kind}", figure, "ns", "call and hash", hashing)


def _compare(tokens: NDArray[np.uint32]) -> float:
    return best_ns(operator.eq, tokens.tobytes(), tokens.copy().tobytes(), calls=10_000)


def _batches(rng: np.random.Generator) -> Iterator[Row]:
    """Many prompts in a call: the share of the interpreter is gone."""
    index, empty = _fleet(8), _fleet(8)
    prompt = _tokens(rng, LONG)
    index.open(prompt, replica=0)
    count = 32
    tokens, offsets = np.tile(prompt, count), np.arange(count + 1) * LONG
    hashing = best_ns(empty.lookup_batch, tokens, offsets, calls=20, operations=count)
    figure = best_ns(index.lookup_batch, tokens, offsets, calls=20, operations=count)
    yield Row(f"lookup {LONG} tokens, batch of {count}", figure, "ns", "hash only, in a batch", hashing)


def _replicas(rng: np.random.Generator) -> Iterator[Row]:
    """One prompt that every replica holds."""
    prompt = _tokens(rng, SHORT)
    first = 0.0
    for replicas in (8, 64, 1_024):
        index = _fleet(replicas)
        history = index.open(prompt)
        for row in range(replicas):
            index.place(history, row)
        figure = best_ns(index.holders, history, calls=20_000)
        first = first or figure
        yield Row(f"8 of the holders, {replicas} replicas", figure, "ns", "8 replicas", first)


def _decisions(rng: np.random.Generator) -> Iterator[Row]:
    """Whole decisions of the router for a known session: submit what is new, abort."""
    for replicas in (8, 64):
        router = turnout.Router([turnout.Replica(f"r{at}", kv_tokens=1e8) for at in range(replicas)])
        prompt = _tokens(rng, LONG)
        router.complete(router.submit(prompt, session="s").turn)
        new = _tokens(rng, 64)

        def turn(new: NDArray[np.uint32], router: turnout.Router = router) -> None:
            router.abort(router.submit(append=new, base_tokens=LONG, session="s").turn)

        noop = best_ns(len, router.prompt(prompt), calls=50_000)
        figure = best_ns(turn, new, calls=5_000)
        yield Row(f"submit 64 appended tokens + abort, {replicas} replicas", figure, "ns", "two no-op calls", 2 * noop)


def _rivals(rng: np.random.Generator) -> Iterator[Row]:
    """The same prompt, held by 8 replicas, from Python."""
    for n in (1_024, LONG, 4 * LONG):
        index = _fleet(8)
        prompt = _tokens(rng, n)
        history = index.open(prompt)
        for row in range(8):
            index.place(history, row)
        ours = best_ns(index.lookup, prompt, calls=2_000)
        for rival in installed():
            for row in range(8):
                rival.insert(prompt, row)
            if rival.lookup(prompt) != dict.fromkeys(range(8), n // BLOCK_TOKENS):
                raise AssertionError(f"{rival.name} answers something else")
            figure = best_ns(rival.lookup, prompt, calls=50)
            yield Row(f"{rival.name}, lookup {n} tokens", figure, "ns", "turnout.PrefixIndex", ours)


def _groups(rng: np.random.Generator, *, groups: int, samples: int = 16) -> Iterator[Row]:
    """GRPO: samples of a shared prompt, each placed and extended by its own output."""
    index, empty = _fleet(8), _fleet(8)
    prompts = [_tokens(rng, SHORT) for _ in range(groups)]
    outputs = [_tokens(rng, APPENDED) for _ in range(samples)]
    unique = groups * (SHORT + samples * APPENDED)

    def play() -> None:
        for at, prompt in enumerate(prompts):
            for output in outputs:
                index.extend(index.open(prompt, replica=at % 8), output, at % 8)

    figure = best_ns(play, calls=1, operations=groups * samples, rounds=1)
    hashing = best_ns(empty.lookup, prompts[0], calls=5_000) + best_ns(empty.lookup, outputs[0], calls=5_000)
    yield Row(f"GRPO {groups}x{samples}: open {SHORT}, extend by {APPENDED}", figure, "ns", "calls and hashes", hashing)
    yield Row("GRPO: memory per unique token", index.stats()["bytes"] / unique, "B", "fingerprints", 8 / BLOCK_TOKENS)


def _agents(rng: np.random.Generator, *, sessions: int) -> Iterator[Row]:
    """Agents: 10 to 60 turns, 2k to 60k tokens, a shared system prompt of 4k."""
    index, empty = _fleet(64), _fleet(64)
    system = _tokens(rng, 4_096)
    handles: list[int] = []
    kept: list[NDArray[np.uint32]] = []
    unique = len(system)
    for session in range(sessions):
        own = _tokens(rng, int(rng.integers(2_000, 60_000)))
        unique += len(own)
        handle = index.open(system, replica=session % 64)
        for part in np.array_split(own, int(rng.integers(10, 60))):
            index.extend(handle, part, session % 64)
        handles.append(handle)
        if len(kept) < KEPT_PROMPTS:
            kept.append(np.concatenate([system, own]))
    memory = index.stats()["bytes"] / unique
    yield Row(f"{sessions} agents: memory per unique token", memory, "B", "fingerprints", 8 / BLOCK_TOKENS)
    order = [kept[at] for at in np.resize(rng.permutation(len(kept)), 4 * len(kept))]
    figure, hashing = best_of_each_ns(index.lookup, order), best_of_each_ns(empty.lookup, order)
    yield Row(f"{sessions} agents: lookup whole prompts", figure, "ns", "call and hash", hashing)
    asked = np.array(rng.permutation(handles), np.uint64)
    yield Row(f"{sessions} agents: peek, batch", *_peeks(index, asked))


def _many(rng: np.random.Generator, *, sessions: int) -> Iterator[Row]:
    """Many short sessions: every peek misses the processor's caches."""
    index = _fleet(64)
    prompts = _tokens(rng, 64 * sessions).reshape(sessions, 64)
    handles = np.array([index.open(prompt, replica=at % 64) for at, prompt in enumerate(prompts)], np.uint64)
    yield Row(f"{sessions} sessions: peek, batch, random order", *_peeks(index, rng.permutation(handles)))
    # A run, its holding, a slot in the table of forks, and four fingerprints.
    bound = 72 + 36 + 4 + 32
    yield Row(
        f"{sessions} sessions of 64 tokens: index bytes of each",
        index.stats()["bytes"] / sessions,
        "B",
        "records",
        bound,
    )


def _peeks(index: turnout.PrefixIndex, handles: NDArray[np.uint64]) -> tuple[float, str, str, float]:
    """Time of a peek, beside reading one word at a random place of 128 MiB."""
    figure = best_ns(index.peek_batch, handles, calls=1, operations=len(handles), rounds=5)
    words = np.zeros(1 << 24, np.uint64)
    places = np.random.default_rng(1).integers(0, len(words), len(handles))
    reading = best_ns(words.take, places, calls=1, operations=len(handles), rounds=5)
    return figure, "ns", "one random read, in a batch", reading
