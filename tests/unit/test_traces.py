"""Reading rt1 traces: what is played, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard

from turnout.errors import InvalidArgument, TraceError
from turnout.simulate.traces import read_trace

if TYPE_CHECKING:
    from turnout.simulate.scenario import Scenario

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def write(path: Path, *lines: object) -> Path:
    """Write an rt1 file; a str is a line as it stands."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_bytes(zstandard.compress(text.encode()))
    return path


def request(prompt: int = 40, *runs: list[int], **fields: Any) -> dict[str, Any]:
    return {"in": prompt, "out": 5, "h": [list(run) for run in runs], **fields}


def session(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"sid": "s", "block_size": 16, "reqs": list(requests), **fields}


def ids(scenario: Scenario) -> list[list[int]]:
    """The block ids of every turn, spelled out."""
    out = []
    for turn in range(scenario.turns):
        runs = range(scenario.turn_first_run[turn], scenario.turn_first_run[turn + 1])
        spelled = [np.arange(n) + scenario.run_first_id[r] for r in runs if (n := scenario.run_blocks[r])]
        out.append(np.concatenate(spelled).tolist() if spelled else [])
    return out


class TestSessions:
    def test_lengths_gaps_and_order(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "a.zst",
            session(request(33, [1, 2], think=0.0, t=0), request(50, [1, 3], think=2.5, t=9.0), block_size=16),
            session(request(20, [1, 1], t=0.0), request(35, [1, 2], t=4.0), request(40, [1, 2], t=3.0)),
        )
        scenario = read_trace(path)
        assert scenario.session_first_turn.tolist() == [0, 2, 5]
        assert scenario.turn_prompt_tokens.tolist() == [33, 50, 20, 35, 40]
        assert scenario.turn_output_tokens.tolist() == [5] * 5
        # `think` where it is recorded, else the difference of `t`; a clock that runs backwards gives 0.
        assert scenario.turn_gap_s.tolist() == [0, 2.5, 0, 4, 0]
        assert read_trace(path, gap_scale=0.5).turn_gap_s.tolist() == [0, 1.25, 0, 2, 0]

    def test_ids_numbered_per_session_are_private(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zst", *[session(request(33, [1, 2]), request(50, [1, 3])) for _ in range(3)])
        turns = ids(read_trace(path))
        assert turns[1][:2] == turns[0], "a session keeps its prefix"
        assert not set(turns[1]) & set(turns[3]) | set(turns[3]) & set(turns[5])
        assert not read_trace(path).run_shared.any()

    def test_ids_of_the_file_are_shared(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "a.zst",
            session(request(33, [1, 2]), request(50, [1, 3])),
            session(request(50, [1, 2], [4, 1])),
            session(request(50, [1, 2], [5, 1])),
        )
        scenario = read_trace(path)
        assert ids(scenario) == [[1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 5]]
        # Only what two sessions use keeps its ids when the list is played again; runs are cut there.
        assert scenario.run_shared.tolist() == [True, True, False, True, False, True, False]

    def test_sub_agents_start_after_their_turn_and_share_the_ids(self, tmp_path: Path) -> None:
        child = {"sid": "c", "parent": "s", "after_turn": 1, "t": 3.0, "reqs": [request(40, [1, 1], [4, 1])]}
        lines = [session(request(33, [1, 2]), request(50, [1, 3]), subagents=[child]) for _ in range(2)]
        scenario = read_trace(write(tmp_path / "a.zst", *lines))
        assert scenario.session_parent.tolist() == [-1, 0, -1, 2]
        assert scenario.session_after_turn.tolist() == [-1, 1, -1, 1]
        turns = ids(scenario)
        assert turns[2][0] == turns[0][0]
        assert not set(turns[2]) & set(turns[5])

    def test_requests_without_a_prompt_are_left_out_and_counted(self, tmp_path: Path) -> None:
        child = {"sid": "c", "after_turn": 2, "reqs": [request(40, [7, 2])]}
        reqs = [request(33, [1, 2]), request(0, out=3), request(50, [1, 3], out=0), request(0)]
        scenario = read_trace(write(tmp_path / "a.zst", session(*reqs, subagents=[child])))
        assert scenario.turn_prompt_tokens.tolist() == [33, 50, 40]
        assert scenario.turn_output_tokens.tolist() == [5, 1, 5]
        assert scenario.session_after_turn.tolist() == [-1, 1]
        assert scenario.config["empty_requests"] == 2

    def test_only_the_first_sessions(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zst", *[session(request(33, [1, 2])) for _ in range(5)], "not read")
        assert read_trace(path, sessions=2).sessions == 2

    def test_blank_lines_and_several_frames(self, tmp_path: Path) -> None:
        line = json.dumps(session(request(33, [1, 2]))).encode() + b"\n\n"
        path = tmp_path / "a.zst"
        path.write_bytes(zstandard.compress(line) + zstandard.compress(line.rstrip()))
        assert read_trace(path).sessions == 2


class TestFlatFiles:
    def test_each_request_is_a_session_of_one_turn(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zst", *[{"t": 7.0 * i, "in": 40 + i, "out": 9} for i in range(3)])
        scenario = read_trace(path)
        assert scenario.session_first_turn.tolist() == [0, 1, 2, 3]
        assert scenario.turn_gap_s.tolist() == [0, 0, 0]
        turns = ids(scenario)
        assert [len(turn) for turn in turns] == [2, 2, 2]
        assert len({block for turn in turns for block in turn}) == 6, "no `h`: nothing is shared"

    def test_block_size_is_inferred_and_the_partial_block_dropped(self, tmp_path: Path) -> None:
        lines = [{"t": 0, "in": n, "out": 1, "h": [[0, -(-n // 512)]]} for n in (6_758, 7_322, 600)]
        scenario = read_trace(write(tmp_path / "a.zst", *lines))
        assert scenario.block_tokens == 512
        assert [len(turn) for turn in ids(scenario)] == [13, 14, 1]
        assert scenario.run_shared.all()

    def test_a_size_that_fits_nothing_is_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zst", {"t": 0, "in": 100, "out": 1, "h": [[0, 99]]})
        with pytest.raises(TraceError, match="h does not match `in`: no power of two up to 4096 fits"):
            read_trace(path)


GOOD = session(request(33, [1, 2]))


class TestRefusals:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{not json", "not JSON"),
            ("[1]", "got list, accepted is an object"),
            ({"in": 5, "out": 5}, "a request among sessions"),
            ({"reqs": []}, "block_size is missing"),
            (session(block_size=0), r"block_size: got 0, accepted is a whole number >= 1"),
            (session(block_size=64), r"block_size: got 64, accepted is 16 as before"),
            ({**GOOD, "reqs": {}}, "reqs: got dict, accepted is a list"),
            ({**GOOD, "reqs": [3]}, r"reqs\[0\]: got int, accepted is an object"),
            (session(request(-1)), r"reqs\[0\].in: got -1, accepted is a whole number >= 0"),
            (session(request(33, [1, 2]), request(33.5)), r"reqs\[1\].in: got 33.5, accepted is a whole number"),
            (session({"in": 33, "h": [[1, 2]]}), r"reqs\[0\].out: got None, accepted is a whole number >= 0"),
            (session(request(33, [1, 2], out=True)), r"reqs\[0\].out: got True"),
            (session(request(33, [1, 2], think=-2)), r"reqs\[0\].think: got -2, accepted is a number of seconds >= 0"),
            (session(request(33, [1, 2], t="now")), r"reqs\[0\].t: got now"),
            (
                session(request(33, [1, 5])),
                r"reqs\[0\].h: got 5 blocks, accepted is 2 full blocks of 16 for a prompt of",
            ),
            (session(request(33, [-1, 2])), r"reqs\[0\].h\[0\]\[0\]: got -1"),
            (session(request(33, [1, 0])), r"reqs\[0\].h\[0\]\[1\]: got 0, accepted is a whole number >= 1"),
            (session(request(33, [1])), r"reqs\[0\].h\[0\]: got \[1\], accepted is \[first_id, n\]"),
            ({**GOOD, "subagents": [{"after_turn": 1, "reqs": []}]}, r"subagents\[0\].after_turn: got 1, accepted"),
            ({**GOOD, "subagents": [{"after_turn": 0}]}, r"subagents\[0\].reqs: got NoneType, accepted is a list"),
            ({**GOOD, "subagents": [7]}, r"subagents\[0\]: got int"),
        ],
    )
    def test_a_bad_line_is_named_by_its_number(self, tmp_path: Path, line: object, message: str) -> None:
        path = write(tmp_path / "bad.zst", GOOD, "", line)
        with pytest.raises(TraceError, match=rf"bad\.zst, line 3: .*{message}"):
            read_trace(path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match=r"none\.zst: cannot be read \(No such file or directory\), accepted is"):
            read_trace(tmp_path / "none.zst")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="cannot be read"):
            read_trace(tmp_path)

    def test_not_zstd(self, tmp_path: Path) -> None:
        path = tmp_path / "plain.jsonl"
        path.write_text(json.dumps(GOOD))
        with pytest.raises(TraceError, match=r"plain\.jsonl: not zstd, or damaged after line 0"):
            read_trace(path)

    @pytest.mark.parametrize("kept", [0.3, 0.6, 0.99])
    def test_truncated_anywhere(self, tmp_path: Path, kept: float) -> None:
        rng = np.random.default_rng(0)
        lines = [session(*[request(33, [int(rng.integers(1e9)), 2]) for _ in range(40)]) for _ in range(400)]
        whole = write(tmp_path / "cut.zst", *lines).read_bytes()
        (tmp_path / "cut.zst").write_bytes(whole[: int(kept * len(whole))])
        with pytest.raises(TraceError, match=r"cut\.zst: truncated after line \d+, accepted is a whole zstd file"):
            read_trace(tmp_path / "cut.zst")

    def test_empty_files(self, tmp_path: Path) -> None:
        (tmp_path / "empty.zst").write_bytes(b"")
        with pytest.raises(TraceError, match=r"empty\.zst: the file is empty"):
            read_trace(tmp_path / "empty.zst")
        with pytest.raises(TraceError, match="no session in the file"):
            read_trace(write(tmp_path / "nothing.zst"))

    def test_arguments(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zst", GOOD)
        for bad in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidArgument, match=r"gap_scale: got .*, accepted is a finite number >= 0"):
                read_trace(path, gap_scale=bad)
        with pytest.raises(InvalidArgument, match="sessions: got 0, accepted is a whole number >= 1"):
            read_trace(path, sessions=0)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces lie beside the checkout")
class TestRealTraces:
    """Totals as published with the files; each kind of numbering."""

    @pytest.mark.parametrize(
        ("name", "sessions", "turns", "prompt_tokens", "shared"),
        [
            ("weka-claude-code.train", 544, 33_577, 3_955_266_570, False),
            ("lmcache-miniswe.train", 10, 210, 1_271_840, False),
            ("lmcache-magagent.train", 22, 601, 1_440_398, True),
            ("taubench-airline-groups.train", 156, 1_895, 5_856_805, True),
            ("mooncake-conversation.full", 12_031, 12_031, 144_793_823, True),
            ("azure2023-conv.full", 19_366, 19_366, 22_361_870, False),
        ],
    )
    def test_totals(self, name: str, sessions: int, turns: int, prompt_tokens: int, shared: bool) -> None:
        scenario = read_trace(TRACES / f"{name}.jsonl.zst")
        assert (scenario.sessions, scenario.turns) == (sessions, turns)
        assert scenario.turn_prompt_tokens.sum() == prompt_tokens
        assert scenario.run_shared.any() == shared
