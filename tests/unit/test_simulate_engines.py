"""The step times of the built-in engines against the performance model that they were fitted to."""

import json
from pathlib import Path

import pytest

from turnout.simulate.engines import Engine, engine

SHARED = next((folder for parent in Path(__file__).parents if (folder := parent / "shared" / "perf").is_dir()), None)


def _engine(model: str, system: str, gpus: int) -> Engine:
    size, gpu = model.rsplit("/", 1)[1].lower(), system.split("_", 1)[0]
    return engine(f"{size}-{gpu}" if gpus == 1 else f"{size}-tp{gpus}-{gpu}")


@pytest.mark.skipif(SHARED is None, reason="the points of the performance model are not beside the checkout")
def test_within_a_tenth_of_every_point() -> None:
    assert SHARED is not None
    lines = [line for file in sorted(SHARED.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert len(lines) == 100
    for line in lines:
        point = json.loads(line)
        times = _engine(point["model"], point["system"], point["tp"])
        tokens, batch = point["isl"], point["bs"]
        if point["mode"] == "static_ctx":
            cached = point["prefix"] or 0
            new = tokens - cached
            work = times.prefill_s_per_token * new + times.prefill_s_per_token_pair * new * (new / 2 + cached)
            step_s, measured_ms = times.prefill_base_s + batch * work, point["ttft"]
        else:
            decode_s = times.decode_s_per_sequence * batch + times.decode_s_per_kv_token * batch * tokens
            step_s, measured_ms = times.decode_base_s + decode_s, point["tpot"]
        assert 1e3 * step_s == pytest.approx(float(measured_ms), rel=0.1), line
