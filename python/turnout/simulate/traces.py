"""Read recorded sessions: format `rt1`, one JSON object per line, compressed with zstd.

Session files hold `{sid, block_size, reqs: [{t?, in, out, h?, think?}, ...], subagents?}` per line, flat files one
request `{t, in, out, h?, block_size?}` per line, which is played as a session of one turn. `in` and `out` count tokens,
`t` is in seconds, `think` is the client's time before the request, `h` names the prompt's blocks as runs
`[[first_id, n], ...]`: equal ids are equal tokens. A sub-agent shares the ids of its parent.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.errors import InvalidArgument, MissingExtra, TraceError
from turnout.simulate.recorded import (
    RecordedSession,
    RecordedTurn,
    assemble,
    infer_block_tokens,
    numbered_per_session,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnout.simulate.scenario import Scenario


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
    if importlib.util.find_spec("zstandard") is None:
        raise MissingExtra("reading a trace needs zstandard: pip install 'turnout[simulate]'")
    reader = _Reader(Path(path))
    recorded: list[RecordedSession] = []
    for number, line in _lines(reader.path):
        session = reader.session(number, line)
        if session.turns:
            recorded.append(session)
        if sessions is not None and len(recorded) == sessions:
            break
    if not recorded:
        raise TraceError(f"{path}: no session in the file, accepted is at least one")
    block_tokens = reader.block_tokens or infer_block_tokens(reader.path, recorded)
    config = {"trace": Path(path).name, "gap_scale": gap_scale, "empty_requests": reader.empty_requests}
    local = numbered_per_session(recorded, flat=reader.flat)
    return assemble(recorded, block_tokens, gap_scale, local=local, config=config)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of the decompressed file that are not blank, numbered from 1."""
    import zstandard

    number, rest = 0, b""
    try:
        for data in _decompressed(path):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                number += 1
                if line.strip():
                    yield number, line
    except EOFError as error:
        raise TraceError(f"{path}: {error} after line {number}, accepted is a whole zstd file") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}), accepted is a zstd file of JSON lines") from error
    except zstandard.ZstdError as error:
        raise TraceError(f"{path}: not zstd, or damaged after line {number} ({error})") from error
    if rest.strip():
        yield number + 1, rest


def _decompressed(path: Path) -> Iterator[bytes]:
    """The content of a zstd file of one or more frames, piece by piece; EOFError when the last one is cut short."""
    import zstandard

    with path.open("rb") as file:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        while compressed := file.read(1 << 16):
            while compressed:
                if decoder.eof:
                    decoder = zstandard.ZstdDecompressor().decompressobj()
                yield decoder.decompress(compressed)
                compressed = decoder.unused_data
        if not decoder.eof:
            raise EOFError("truncated" if file.tell() else "the file is empty")


class _Reader:
    """Checks the lines of one file, and what they must have in common."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.flat: bool | None = None
        self.block_tokens = 0
        self.empty_requests = 0

    def session(self, number: int, line: bytes) -> RecordedSession:
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
            return RecordedSession(self._turns(number, "", [{**entry, "t": None}]), [])
        turns, kept = self._numbered(number, "reqs", entry["reqs"])
        return RecordedSession(turns, self._children(number, entry.get("subagents") or [], kept) if turns else [])

    def _children(self, number: int, value: object, kept: list[int]) -> list[tuple[int, list[RecordedTurn]]]:
        """The sub-agents of a session, each with the turn after which it starts."""
        children = []
        for at, child in enumerate(self._list(number, "subagents", value)):
            where = f"subagents[{at}]"
            if not isinstance(child, dict):
                raise self._bad(number, f"{where}: got {type(child).__name__}, accepted is an object")
            after = self._count(number, f"{where}.after_turn", child.get("after_turn"), least=0)
            if after >= len(kept):
                raise self._bad(number, f"{where}.after_turn: got {after}, accepted is a turn below {len(kept)}")
            own = self._turns(number, f"{where}.reqs", self._list(number, f"{where}.reqs", child.get("reqs")))
            if own:
                children.append((kept[after], own))
        return children

    def _numbered(self, number: int, where: str, requests: object) -> tuple[list[RecordedTurn], list[int]]:
        """The turns, and for each request the turn that stands for it: itself, or the last one before it."""
        requests = self._list(number, where, requests)
        turns = self._turns(number, where, requests)
        has_prompt = [isinstance(request, dict) and request.get("in") != 0 for request in requests]
        return turns, np.maximum(np.cumsum(has_prompt) - 1, 0).tolist()

    def _turns(self, number: int, where: str, requests: list[Any]) -> list[RecordedTurn]:
        """The requests of one session."""
        turns: list[RecordedTurn] = []
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
            turns.append(RecordedTurn(prompt, max(output, 1), gap, runs))
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
