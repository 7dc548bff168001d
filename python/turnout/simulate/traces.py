"""Read recorded sessions: format `rt1`, one JSON object per line, compressed with zstd.

Session files hold `{sid, block_size, reqs: [{t?, in, out, h?, think?}, ...], subagents?}` per line, flat files one
request `{t, in, out, h?, block_size?}` per line, which is played as a session of one turn. `in` and `out` count tokens,
`t` is in seconds, `think` is the client's time before the request, `h` names the prompt's blocks as runs
`[[first_id, n], ...]`: equal ids are equal tokens. A sub-agent shares the ids of its parent.

Ids are either numbered per session (each session then uses 1, 2, 3, ... for its own content) or over the whole file
(content-chained ids: equal across sessions means shared). Which of the two a file does is seen from the ids themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from turnout.errors import InvalidArgument, MissingExtra, TraceError
from turnout.simulate.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

WORKLOAD: Final = "trace"
"""The one workload of a trace: recorded sessions carry no class."""

_BLOCK_SIZES: Final = tuple(2**power for power in range(13))
_DENSE_SHARE: Final = 0.9


class _Turn(NamedTuple):
    """One request, checked."""

    prompt_tokens: int
    output_tokens: int
    gap_s: float
    runs: list[tuple[int, int]]


class _Recorded(NamedTuple):
    """One session with its sub-agents, which carry the turn of the parent after which they start."""

    turns: list[_Turn]
    children: list[tuple[int, list[_Turn]]]


def read_trace(path: str | Path, *, sessions: int | None = None, gap_scale: float = 1.0) -> Scenario:
    """Read an `rt1` trace into a scenario.

    Args:
        path: File of JSON lines, compressed with zstd.
        sessions: Keep the first so many sessions (sub-agents come with their parent); default: all.
        gap_scale: Factor on the time between turns: `think` where it is recorded, else the difference of `t`, which
            is from start to start and so includes the recorded service time.

    Returns:
        A scenario of one workload, sessions in the order of the file. Requests without a prompt token are left out and
        counted in `config["empty_requests"]`; an answer of 0 tokens is played as 1.

    Raises:
        TraceError: The file is missing, truncated, not zstd or empty, or a line is bad; the message has the path and,
            where there is one, the line number.
        InvalidArgument: `sessions` or `gap_scale` is out of range.
        MissingExtra: The zstandard package is not installed.
    """
    if sessions is not None and sessions < 1:
        raise InvalidArgument(f"sessions: got {sessions}, accepted is a whole number >= 1")
    if not 0 <= gap_scale < float("inf"):
        raise InvalidArgument(f"gap_scale: got {gap_scale}, accepted is a finite number >= 0")
    reader = _Reader(Path(path))
    recorded: list[_Recorded] = []
    for number, line in _lines(reader.path):
        session = reader.session(number, line)
        if session.turns:
            recorded.append(session)
        if sessions is not None and len(recorded) == sessions:
            break
    if not recorded:
        raise TraceError(f"{path}: no session in the file, accepted is at least one")
    block_tokens = reader.block_tokens or _infer_block_tokens(reader.path, recorded)
    config = {"trace": Path(path).name, "gap_scale": gap_scale, "empty_requests": reader.empty_requests}
    return _assemble(recorded, block_tokens, gap_scale, local=_numbered_per_session(recorded, flat=reader.flat), config=config)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of the decompressed file, numbered from 1."""
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("reading traces needs zstandard: pip install 'turnout[simulate]'") from None
    number, rest, ended = 0, b"", False
    try:
        with path.open("rb") as file:
            decoder = zstandard.ZstdDecompressor().decompressobj()
            while compressed := file.read(1 << 16):
                if ended:
                    decoder, ended = zstandard.ZstdDecompressor().decompressobj(), False
                while compressed:
                    rest += decoder.decompress(compressed)
                    compressed, ended = decoder.unused_data, decoder.eof
                    if ended and compressed:
                        decoder, ended = zstandard.ZstdDecompressor().decompressobj(), False
                *whole, rest = rest.split(b"\n")
                for line in whole:
                    number += 1
                    if line.strip():
                        yield number, line
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}), accepted is a zstd file of JSON lines") from error
    except zstandard.ZstdError as error:
        raise TraceError(f"{path}: not zstd, or damaged after line {number} ({error})") from error
    if not ended:
        size = path.stat().st_size
        problem = "the file is empty" if size == 0 else f"truncated after line {number} ({size} bytes)"
        raise TraceError(f"{path}: {problem}, accepted is a whole zstd file of JSON lines")
    if rest.strip():
        yield number + 1, rest


class _Reader:
    """Checks the lines of one file, and what they must have in common."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.flat: bool | None = None
        self.block_tokens = 0
        self.empty_requests = 0

    def session(self, number: int, line: bytes) -> _Recorded:
        """One line of either kind."""
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise self._bad(number, f"not JSON ({error})") from error
        if not isinstance(entry, dict):
            raise self._bad(number, f"got {type(entry).__name__}, accepted is an object")
        flat = "reqs" not in entry
        if self.flat is not None and flat != self.flat:
            raise self._bad(number, "a request among sessions" if flat else "a session among requests")
        self.flat = flat
        if "block_size" in entry:
            block_tokens = self._count(number, "block_size", entry["block_size"], least=1)
            if self.block_tokens not in (0, block_tokens):
                raise self._bad(number, f"block_size: got {block_tokens}, accepted is {self.block_tokens} as before")
            self.block_tokens = block_tokens
        elif not flat:
            raise self._bad(number, "block_size is missing")
        if flat:
            return _Recorded(self._turns(number, "", [{**entry, "t": None}]), [])
        turns, kept = self._numbered(number, "reqs", entry["reqs"])
        children = []
        for at, child in enumerate(self._list(number, "subagents", entry.get("subagents") or [])):
            where = f"subagents[{at}]"
            if not isinstance(child, dict):
                raise self._bad(number, f"{where}: got {type(child).__name__}, accepted is an object")
            after = self._count(number, f"{where}.after_turn", child.get("after_turn"), least=0)
            if after >= len(kept):
                raise self._bad(number, f"{where}.after_turn: got {after}, accepted is a turn below {len(kept)}")
            own = self._turns(number, f"{where}.reqs", self._list(number, f"{where}.reqs", child.get("reqs")))
            if own and turns:
                children.append((kept[after], own))
        return _Recorded(turns, children)

    def _numbered(self, number: int, where: str, requests: object) -> tuple[list[_Turn], list[int]]:
        """The turns, and for each request the turn that stands for it: itself, or the last one before it."""
        requests = self._list(number, where, requests)
        turns = self._turns(number, where, requests)
        has_prompt = [isinstance(request, dict) and request.get("in") != 0 for request in requests]
        return turns, np.maximum(np.cumsum(has_prompt) - 1, 0).tolist()

    def _turns(self, number: int, where: str, requests: list[Any]) -> list[_Turn]:
        """The requests of one session."""
        turns: list[_Turn] = []
        before: float | None = None
        for at, request in enumerate(requests):
            place = f"{where}[{at}]." if where else ""
            if not isinstance(request, dict):
                raise self._bad(number, f"{where}[{at}]: got {type(request).__name__}, accepted is an object")
            prompt = self._count(number, f"{place}in", request.get("in"), least=0)
            output = self._count(number, f"{place}out", request.get("out"), least=0)
            think = self._seconds(number, f"{place}think", request.get("think"))
            start = self._seconds(number, f"{place}t", request.get("t"))
            gap = think if think is not None else 0.0 if start is None or before is None else max(start - before, 0.0)
            if prompt == 0:
                self.empty_requests += 1
                continue
            before = before if start is None else start
            runs = self._runs(number, f"{place}h", request.get("h"), prompt)
            turns.append(_Turn(prompt, max(output, 1), gap, runs))
        return turns

    def _runs(self, number: int, where: str, value: object, prompt_tokens: int) -> list[tuple[int, int]]:
        """The block runs of one prompt; an absent `h` is a prompt that nobody shares."""
        if value is None:
            return []
        runs = []
        for at, run in enumerate(self._list(number, where, value)):
            if not isinstance(run, list) or len(run) != 2:  # noqa: PLR2004 - [first_id, n]
                raise self._bad(number, f"{where}[{at}]: got {str(run)[:40]}, accepted is [first_id, n]")
            first = self._count(number, f"{where}[{at}][0]", run[0], least=0)
            runs.append((first, self._count(number, f"{where}[{at}][1]", run[1], least=1)))
        blocks = sum(count for _, count in runs)
        size = self.block_tokens
        # Some collectors name the partial last block as well.
        if size and blocks not in (prompt_tokens // size, -(-prompt_tokens // size)):
            accepted = f"{prompt_tokens // size} full blocks of {size} for a prompt of {prompt_tokens} tokens"
            raise self._bad(number, f"{where}: got {blocks} blocks, accepted is {accepted}")
        return runs

    def _list(self, number: int, where: str, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise self._bad(number, f"{where}: got {type(value).__name__}, accepted is a list")
        return value

    def _count(self, number: int, where: str, value: object, *, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
            raise self._bad(number, f"{where}: got {str(value)[:40]}, accepted is a whole number >= {least}")
        return value

    def _seconds(self, number: int, where: str, value: object) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self._bad(number, f"{where}: got {str(value)[:40]}, accepted is a number of seconds >= 0")
        return float(value)

    def _bad(self, number: int, problem: str) -> TraceError:
        return TraceError(f"{self.path}, line {number}: {problem}")


def _infer_block_tokens(path: Path, recorded: list[_Recorded]) -> int:
    """Block size of a file that does not state it: the one power of two that fits every prompt."""
    turns = [turn for session in recorded for turn in session.turns if turn.runs]
    if not turns:
        return _BLOCK_SIZES[4]
    prompt = np.array([turn.prompt_tokens for turn in turns])
    blocks = np.array([sum(count for _, count in turn.runs) for turn in turns])
    fits = [size for size in _BLOCK_SIZES if ((blocks == prompt // size) | (blocks == -(-prompt // size))).all()]
    if len(fits) != 1:
        seen = f"{fits} fit" if fits else "no power of two up to 4096 fits"
        raise TraceError(f"{path}: h does not match `in`: {seen} as block size, accepted is one; add block_size to a line")
    return fits[0]


def _numbered_per_session(recorded: list[_Recorded], *, flat: bool | None) -> bool:
    """Whether ids start anew in every session: then most sessions use all of 1..max, and few of a shared file do."""
    if flat or len(recorded) < 2:  # noqa: PLR2004 - one session cannot differ from another
        return False
    dense = 0
    for session in recorded[1:]:
        spans = _spans(session)
        if len(spans):
            held = int((spans[:, 1] - spans[:, 0]).sum())
            dense += int(spans[0, 0] <= 1 and held >= _DENSE_SHARE * (spans[-1, 1] - spans[0, 0]))
    return 2 * dense > len(recorded) - 1


def _spans(session: _Recorded) -> NDArray[np.int64]:
    """(n, 2) disjoint, sorted intervals [from, to) of the ids of a session and its sub-agents."""
    turns = [*session.turns, *(turn for _, own in session.children for turn in own)]
    merged: list[list[int]] = []
    for first, count in sorted({run for turn in turns for run in turn.runs}):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], first + count)
        else:
            merged.append([first, first + count])
    return np.array(merged, dtype=np.int64).reshape(-1, 2)


def _assemble(
    recorded: list[_Recorded], block_tokens: int, gap_scale: float, *, local: bool, config: dict[str, Any]
) -> Scenario:
    """Lay the sessions out as flat arrays, with ids that are unique unless content is shared."""
    edges, shared = _shared_pieces([] if local else [_spans(session) for session in recorded])
    base = int(edges[-1]) + 1 if len(edges) else 0
    parent, after, lengths = [], [], []
    prompt, output, gap = [], [], []
    first_run, first_id, blocks, is_shared = [0], [], [], []
    for session in recorded:
        root, offset, top = len(parent), base if local else 0, 0
        for ahead, turns in [(-1, session.turns), *session.children]:
            parent.append(-1 if ahead < 0 else root)
            after.append(ahead)
            lengths.append(len(turns))
            for turn in turns:
                prompt.append(turn.prompt_tokens)
                output.append(turn.output_tokens)
                gap.append(turn.gap_s * gap_scale)
                left = turn.prompt_tokens // block_tokens
                if not turn.runs and left:  # nobody's blocks but this turn's
                    first_id.append(base + (top if local else 0))
                    blocks.append(left)
                    is_shared.append(False)
                    top, base = (top + left, base) if local else (top, base + left)
                for start, count in turn.runs:
                    for piece, n, common in _cut(start, min(count, left), edges, shared):
                        first_id.append(offset + piece)
                        blocks.append(n)
                        is_shared.append(common)
                    left -= min(count, left)
                    top = max(top, start + count)
                first_run.append(len(first_id))
        base += top + 1 if local else 0
    return Scenario(
        workloads=(WORKLOAD,),
        targets=np.array([np.nan]),
        block_tokens=block_tokens,
        session_workload=np.zeros(len(parent), dtype=np.int64),
        session_first_turn=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        session_parent=np.array(parent, dtype=np.int64),
        session_after_turn=np.array(after, dtype=np.int64),
        turn_prompt_tokens=np.array(prompt, dtype=np.int64),
        turn_output_tokens=np.array(output, dtype=np.int64),
        turn_gap_s=np.array(gap, dtype=np.float64),
        turn_first_run=np.array(first_run, dtype=np.int64),
        run_first_id=np.array(first_id, dtype=np.int64),
        run_blocks=np.array(blocks, dtype=np.int64),
        run_shared=np.array(is_shared, dtype=np.bool_),
        config=config,
    )


def _shared_pieces(spans: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Cut the line of ids where the number of sessions that use an id changes.

    Returns:
        Sorted edges (E,), and (E,) whether the ids from each edge to the next are used by more than one session.
    """
    if not spans:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    both = np.concatenate(spans)
    edges = np.unique(both)
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, both[:, 0]), 1)
    np.add.at(change, np.searchsorted(edges, both[:, 1]), -1)
    return edges, np.cumsum(change) > 1


def _cut(start: int, count: int, edges: NDArray[np.int64], shared: NDArray[np.bool_]) -> Iterator[tuple[int, int, bool]]:
    """Split a run where sharing begins or ends: (first id, blocks, shared) per piece."""
    end = start + count
    if len(edges) == 0:
        if count:
            yield start, count, False
        return
    at = int(np.searchsorted(edges, start, side="right")) - 1
    while start < end:
        common = bool(shared[at])
        while at + 1 < len(edges) and edges[at + 1] < end and bool(shared[at + 1]) == common:
            at += 1
        stop = min(end, int(edges[at + 1]) if at + 1 < len(edges) else end)
        yield start, stop - start, common
        start, at = stop, at + 1
