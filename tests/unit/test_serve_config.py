"""The settings of `turnout serve`: file, options, environment; what is refused, and what is shown."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnout import Workload
from turnout.errors import InvalidArgument, UnknownPolicy
from turnout.feeds import Engine, KvSource
from turnout.server.config import ServeConfig, StateConfig
from turnout.server.config_file import effective, read_settings

WHOLE = """
engines = ["http://10.0.0.1:8000"]
[server]
port = 9000
token_file = "token"
[[engine]]
url = "http://10.0.0.2:8000"
kv_tokens = 5000
kv_events = [{ endpoint = "tcp://10.0.0.2:5557", rank = 1 }]
replica = { prefill_tokens_per_s = 9000 }
[[workload]]
name = "agent"
target = 0.6
context_tokens = 30000
[policy]
name = "block-time"
kappa = 2
[state]
directory = "kept"
rotate_bytes = 1000000
[log]
format = "text"
[feeds]
dead_after_s = 3
"""


def written(tmp_path, text):
    path = tmp_path / "turnout.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_section_arrives(tmp_path):
    (tmp_path / "token").write_text("secret\n", encoding="utf-8")
    config = ServeConfig(**read_settings(written(tmp_path, WHOLE)))
    assert config.engines[0] == "http://10.0.0.1:8000"
    engine = config.engines[1]
    assert isinstance(engine, Engine)
    assert (engine.name, engine.kv_tokens) == ("10.0.0.2:8000", 5_000)
    assert engine.kv_events == (KvSource("tcp://10.0.0.2:5557", rank=1),)
    assert engine.replica.prefill_tokens_per_s == 9_000
    assert config.workload_list() == [Workload("agent", target=0.6, context_tokens=30_000)]
    assert config.make_policy().kappa == 2
    assert (config.token, config.port, config.log.format, config.feeds.dead_after_s) == ("secret", 9_000, "text", 3)
    assert config.directory == tmp_path / "kept", "relative to the file, not to where the server is started"
    shown = json.dumps(effective(config))
    assert "secret" not in shown
    assert "(hidden)" in shown


WRONG = {
    "no TOML": ("[server", "config: got"),
    "unknown section": ("[serve]\nport = 1", "serve: got {'port': 1}, accepted is a section: server"),
    "unknown key": ("[server]\nprot = 1", "server.prot: got 1, accepted is a key of [server]: host, port"),
    "text for a number": ('[server]\nport = "1"', "server.port: got '1', accepted is a whole number"),
    "truth for a number": ("[feeds]\nstale_after_s = true", "feeds.stale_after_s: got True, accepted is a number"),
    "out of range": ("[feeds]\nstale_after_s = -1", "feeds.stale_after_s: got -1, accepted is a finite number above 0"),
    "one of": ('[log]\nlevel = "loud"', "log.level: got 'loud', accepted is 'debug' or 'info'"),
    "list of texts": ("engines = [1]", "engines[0]: got 1, accepted is text"),
    "no table": ("server = 1", "server: got 1, accepted is a section, [server]"),
    "no tables": ('workload = "a"', "workload: got 'a', accepted is sections, [[workload]]"),
    "needed": ("[[workload]]\ntarget = 0.5", "workload.name: got None, accepted is text"),
    "inside": ('[[engine]]\nurl = "http://a"\nkv_events = [{ endpont = "b" }]', "engine.kv_events[0].endpont: got 'b'"),
    "an address": ('[[engine]]\nurl = "a"', "engine.url: got 'a', accepted is an address"),
    "a secret": ('[server]\ntokn = "swordfish"', "server.tokn: got (hidden)"),
    "both": ('[server]\ntoken = "a"\ntoken_file = "b"', "token_file: got a token as well"),
    "no file": ('[server]\ntoken_file = "nowhere"', "token_file: got"),
    "of the policy": ('[policy]\nname = "block-time"\nkapa = 1', "policy.kapa: got 1, accepted is an argument of"),
    "in the policy": ('[policy]\nname = "block-time"\nkappa = -1', "policy.kappa: got -1"),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(tmp_path, text, says):
    with pytest.raises(InvalidArgument) as caught:
        ServeConfig(**read_settings(written(tmp_path, text)))
    assert says in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_an_unknown_policy_is_refused_before_anything_starts():
    with pytest.raises(UnknownPolicy):
        ServeConfig(policy="best")


def serve(*options, **environment):
    command = [sys.executable, "-m", "turnout.cli", "serve", *map(str, options)]
    known = {name: value for name, value in os.environ.items() if name != "TURNOUT_TOKEN"}
    shown = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, env={**known, **environment}, timeout=60
    )
    return shown.returncode, shown.stdout, shown.stderr


def test_options_override_the_file_and_the_environment_brings_the_token(tmp_path):
    file = written(tmp_path, WHOLE.replace('token_file = "token"', 'token = "filed"'))
    options = ["--config", file, "--check-config", "--port", 0, "--engine", "http://b", "--policy", "open"]
    code, out, error = serve(*options, "--reattach-s", 7, TURNOUT_TOKEN="swordfish")  # noqa: S106 - a test's
    assert code == 0, error
    shown = json.loads(out)
    assert (shown["server"]["port"], shown["server"]["token"]) == (0, "(hidden)")
    assert shown["engine"] == [{"url": "http://b"}]
    assert shown["policy"] == {"name": "open"}, "arguments of another policy are not its own"
    assert (shown["state"]["reattach_s"], shown["state"]["rotate_bytes"]) == (7, 1_000_000)
    assert shown["workload"][0]["name"] == "agent"
    code, out, error = serve("--config", written(tmp_path, "[server]\nport = 70000"), "--check-config")
    assert (code, error) == (2, "turnout: server.port: got 70000, accepted is a port, 0..65535\n")


def test_every_setting_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    groups = [each.name for each in dataclasses.fields(ServeConfig) if dataclasses.is_dataclass(each.default)]
    for group in ("server", *groups, "feeds", "proxy", "gates"):
        assert f"`[{group}]`" in page
        keys = effective(ServeConfig())[group]
        assert group == "feeds" or all(f"`{key}`" in page for key in keys), group


def test_the_file_of_the_page_is_accepted_and_every_option_is_on_one(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "serve.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "turnout.token").write_text("secret", encoding="utf-8")
    config = ServeConfig(**read_settings(written(tmp_path, text)))
    assert len(config.engines) == 2
    code, out, error = serve("--help", COLUMNS="200", TERM="dumb")
    assert code == 0, error
    options = set(re.findall(r"(--[a-z-]+)", out)) - {"--help"}
    assert len(options) > 15
    pages = page + (docs / "proxy.md").read_text(encoding="utf-8")
    assert {option for option in options if f"`{option}" not in pages} == set()


def test_where_the_state_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert StateConfig().where(8077) == tmp_path / "turnout" / "port-8077"
    assert StateConfig().where(0) is None, "there is no address to come back at"
    assert StateConfig(directory=tmp_path / "d").where(0) == tmp_path / "d"
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/var:{tmp_path}/other")
    assert StateConfig().where(8077) == tmp_path / "var" / "port-8077"
    assert StateConfig(keep=False).where(8077) is None
    for wrong in ({"rotate_bytes": 1}, {"reattach_s": -1.0}, {"keep": False, "directory": tmp_path}):
        with pytest.raises(InvalidArgument):
            StateConfig(**wrong)
