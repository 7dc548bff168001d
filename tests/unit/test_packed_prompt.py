"""A prompt that is hashed in one process and used in another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout import Prompt, Replica, Router
from turnout.errors import InvalidArgument, InvalidTokens

KEY = bytes(range(16))


def router(hash_key=KEY, block_tokens=16):
    return Router([Replica("r0", kv_tokens=1e6)], hash_key=hash_key, block_tokens=block_tokens)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=100), st.integers(1, 40))
def test_a_packed_prompt_is_the_same_prompt(tokens, block_tokens):
    prompt = Prompt(tokens, hash_key=KEY, block_tokens=block_tokens)
    packed = prompt.pack()
    assert len(packed) == 20 + 8 * (len(tokens) // block_tokens) + 4 * (len(tokens) % block_tokens)
    there = Prompt.unpack(packed, hash_key=KEY)
    assert (len(there), there.block_tokens, there.pack()) == (len(tokens), block_tokens, packed)


def test_it_finds_what_the_tokens_themselves_left():
    here = router()
    tokens = list(range(100))
    here.submit(tokens, session="a", now=0.0)
    unpacked = Prompt.unpack(Prompt(tokens, hash_key=KEY).pack(), hash_key=here.hash_key)
    assert here.peek(unpacked) == here.peek(tokens) == [("r0", 96)]
    assert here.submit(unpacked, session="b", now=0.0).cached_tokens == 96


def test_another_key_is_refused():
    packed = Prompt([1, 2, 3], hash_key=KEY).pack()
    with pytest.raises(InvalidTokens, match="another key"):
        Prompt.unpack(packed, hash_key=bytes(16))
    assert KEY not in packed


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda packed: packed[:19],
        lambda packed: b"x" + packed[1:],
        lambda packed: packed[:-1],
        lambda packed: packed + b"\0\0\0\0",
        lambda packed: packed[:4] + bytes(4) + packed[8:],
        lambda packed: packed[:16] + b"\xff\xff\xff\xff" + packed[20:],
    ],
)
def test_other_bytes_are_refused(damage):
    packed = Prompt(list(range(40)), hash_key=KEY).pack()
    with pytest.raises(InvalidArgument, match=r"Prompt\.pack"):
        Prompt.unpack(damage(packed), hash_key=KEY)


def test_a_tail_of_a_whole_block_is_refused():
    packed = Prompt(list(range(200)), hash_key=KEY).pack()
    with pytest.raises(InvalidTokens, match="fewer than one block"):
        Prompt.unpack(packed[:16] + (16).to_bytes(4, "little") + packed[20:], hash_key=KEY)
