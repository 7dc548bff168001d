"""What counts as tokens, and what is refused, with index and value."""

from __future__ import annotations

import array
import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnout
from turnout.errors import InvalidArgument, InvalidTokens

TOKENS = [5, 0, 151_935, 4_294_967_295, 7, 7, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


class Index:
    """An integer by `__index__` alone, as a NumPy scalar is."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "index objects": lambda tokens: [Index(token) for token in tokens],
    "numpy scalars": lambda tokens: list(np.array(tokens, dtype=np.uint32)),
    "numpy int64": lambda tokens: np.array(tokens, dtype=np.int64),
    "numpy uint64": lambda tokens: np.array(tokens, dtype=np.uint64),
    "numpy uint32": lambda tokens: np.array(tokens, dtype=np.uint32),
    "read-only": lambda tokens: np.frombuffer(np.array(tokens, dtype=np.uint32).tobytes(), dtype=np.uint32),
    "array q": lambda tokens: array.array("q", tokens),
    "array Q": lambda tokens: array.array("Q", tokens),
    "array I": lambda tokens: array.array("I", tokens),
    "array L": lambda tokens: array.array("L", tokens),
    "memoryview": lambda tokens: memoryview(array.array("q", tokens)),
    "ctypes I": lambda tokens: (ctypes.c_uint32 * len(tokens))(*tokens),
    "ctypes l": lambda tokens: (ctypes.c_long * len(tokens))(*tokens),
    "ctypes Q": lambda tokens: (ctypes.c_uint64 * len(tokens))(*tokens),
    "marked order": lambda tokens: memoryview((ctypes.c_int64 * len(tokens))(*tokens)),
    "not aligned": lambda tokens: np.frombuffer(b"\0" + np.array(tokens, dtype=np.int64).tobytes(), np.int64, offset=1),
    "slice": lambda tokens: np.array([1, *tokens, 1], dtype=np.int64)[1:-1],
}


@pytest.fixture
def router() -> turnout.Router:
    return turnout.Router([turnout.Replica("r0", kv_tokens=10_000)], hash_key=bytes(16))


def seen(router: turnout.Router, tokens: object) -> tuple[int, list[tuple[str, int]]]:
    return len(router.prompt(tokens)), router.peek(tokens)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_equal_tokens_are_equal_in_any_container(router: turnout.Router, kind: str) -> None:
    decision = router.submit(TOKENS, session="s", now=0.0)
    router.complete(decision.turn, now=0.0)
    assert seen(router, CONTAINERS[kind](TOKENS)) == (len(TOKENS), [("r0", 16)])


@pytest.mark.parametrize("kind", ["numpy int32", "array i", "array l"])
def test_signed_kinds(router: turnout.Router, kind: str) -> None:
    tokens = [token % 2**31 for token in TOKENS]
    make = {
        "numpy int32": lambda: np.array(tokens, dtype=np.int32),
        "array i": lambda: array.array("i", tokens),
        "array l": lambda: array.array("l", tokens),
    }[kind]
    router.submit(tokens, session="s", now=0.0)
    assert router.peek(make()) == [("r0", 16)]


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=17, max_size=70),
    st.sampled_from(sorted(CONTAINERS)),
)
def test_any_tokens(tokens: list[int], kind: str) -> None:
    router = turnout.Router([turnout.Replica("r0", kv_tokens=10_000)])
    router.submit(tokens, session="s", now=0.0)
    held = (len(tokens) - 1) // 16 * 16
    assert seen(router, CONTAINERS[kind](tokens)) == (len(tokens), [("r0", held)])
    assert router.submit(CONTAINERS[kind](tokens), session="t", now=1.0).cached_tokens == held


REFUSED = {
    "bytes": (b"abcd", "got bytes"),
    "bytearray": (bytearray(b"abcd"), "got bytearray"),
    "str": ("abcd", "got str"),
    "None in a list": ([1, None], "index 1: got NoneType None"),
    "bool in a list": ([1, 2, True], "index 2: got bool True"),
    "float in a list": ([1.0, 2], "index 0: got float 1.0"),
    "numpy float in a list": ([np.float64(3.5)], "index 0: got float64"),
    "negative in a list": ([1, -100], r"index 1: got -100, .*padding"),
    "too large in a list": ([2**32], "index 0: got 4294967296"),
    "huge in a list": ([2**200], "index 0: got 1606938"),
    "bool array": (np.ones(3, dtype=bool), "format '[?]'|format \"[?]\""),
    "float array": (np.ones(3), 'format "d"'),
    "int16 array": (np.ones(3, dtype=np.int16), 'format "h"'),
    "big-endian array": (np.ones(3, dtype=">i4"), 'format ">i"'),
    "big-endian array of int64": (np.ones(3, dtype=">i8"), 'format ">q"'),
    "NumPy bool in a list": ([1, np.True_], "index 1: got bool"),
    "ctypes of bytes": ((ctypes.c_uint8 * 3)(1, 2, 3), 'format "<B"'),
    "dates": (np.array(["2020"], dtype="M8[s]"), "got ndarray that NumPy cannot view"),
    "two dimensions": (np.ones((2, 3), dtype=np.int64), "got 2 dimensions"),
    "no dimension": (np.array(3, dtype=np.int64), "got 0 dimensions"),
    "strided": (np.arange(10, dtype=np.int64)[::2], "gaps"),
    "negative, not aligned": (
        np.frombuffer(b"\0" + np.array([1, -7]).tobytes(), np.int64, offset=1),
        "index 1: got -7",
    ),
    "negative in an array": (np.array([1, 2, -1], dtype=np.int32), "index 2: got -1"),
    "too large in an array": (np.array([1, 2**33]), "index 1: got 8589934592"),
    "too large unsigned": (np.array([2**63], dtype=np.uint64), "index 0: got 9223372036854775808"),
    "a number": (5, "got int"),
    "a dict": ({1: 2}, "got dict"),
    "a set": ({1, 2}, "got set"),
    "a generator": ((token for token in TOKENS), "got generator"),
    "empty list": ([], "no tokens"),
    "empty array": (np.array([], dtype=np.int64), "no tokens"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_and_nothing_changed(router: turnout.Router, kind: str) -> None:
    tokens, message = REFUSED[kind]
    router.submit(TOKENS, turn="open", session="s", now=0.0)
    before = router.stats()
    with pytest.raises(InvalidTokens, match=message) as caught:
        router.submit(tokens, session="s2", now=1.0)
    assert (caught.value.argument, caught.value.accepted) == ("prompt", "1-D integers from 0 to 4294967295")
    if "empty" not in kind:
        with pytest.raises(InvalidTokens, match=message if kind != "a generator" else "got generator"):
            router.complete("open", tokens, now=1.0)
    assert router.stats() == before
    router.audit()


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if "empty" not in kind and kind != "a generator"])
def test_refused_in_an_append_too(router: turnout.Router, kind: str) -> None:
    tokens, message = REFUSED[kind]
    router.complete(router.submit(TOKENS, session="s", now=0.0).turn, now=0.5)
    before = router.stats()
    with pytest.raises(InvalidTokens, match=message) as caught:
        router.submit(append=tokens, base_tokens=len(TOKENS), session="s", now=1.0)
    assert caught.value.argument == "append"
    assert router.stats() == before
    router.audit()
    assert router.submit(append=[1], base_tokens=len(TOKENS), session="s", now=1.0).placed


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    st.integers(-(2**63), -1) | st.integers(2**32, 2**63 - 1),
    st.data(),
)
def test_any_id_out_of_range_is_named_with_its_index(tokens: list[int], bad: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(tokens)))
    tokens.insert(index, bad)
    router = turnout.Router([turnout.Replica("r0", kv_tokens=10_000)])
    for make in (list, lambda items: np.array(items, dtype=np.int64), lambda items: array.array("q", items)):
        with pytest.raises(InvalidTokens, match=f"index {index}: got {bad},"):
            router.submit(make(tokens), session="s", now=0.0)
    assert router.stats()["submitted"] == 0
    router.audit()


def test_a_prompt_is_bound_to_its_block_size(router: turnout.Router) -> None:
    other = turnout.Prompt(TOKENS, hash_key=router.hash_key, block_tokens=8)
    with pytest.raises(InvalidTokens, match="blocks of 8 tokens, here blocks have 16"):
        router.submit(other, now=0.0)
    same = turnout.Prompt(TOKENS, hash_key=router.hash_key)
    assert router.submit(same, session="s", now=0.0).placed
    assert router.peek(router.prompt(TOKENS)) == [("r0", 16)]


def test_a_prompt_is_bound_to_its_key(router: turnout.Router) -> None:
    """Under another key it would match nothing, and its session would be charged for what it shares."""
    other = turnout.Prompt(TOKENS, hash_key=b"x" * 16)
    before = router.stats()
    for use in (lambda: router.submit(other, session="s", now=0.0), lambda: router.peek(other)):
        with pytest.raises(InvalidTokens, match="another key") as caught:
            use()
        assert caught.value.argument == "prompt"
    assert router.stats() == before
    router.audit()


@pytest.mark.parametrize(
    ("key", "block"),
    [(b"short", 16), (bytes(16), 0), (bytes(16), 5_000), (bytes(16), -1), (bytes(16), 2**40), (bytes(16), True)],
)
def test_prompt_arguments(key: bytes, block: int) -> None:
    with pytest.raises(InvalidArgument):
        turnout.Prompt(TOKENS, hash_key=key, block_tokens=block)


def test_cpu_tensors_come_by_dlpack(router: turnout.Router) -> None:
    class Tensor:
        """What a CPU tensor offers: no buffer, the DLPack protocol."""

        def __init__(self, values: np.ndarray) -> None:
            self.values = values

        def __dlpack__(self, **keywords: object) -> object:
            return self.values.__dlpack__(**keywords)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.values.__dlpack_device__()

    class OnGpu(Tensor):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **keywords: object) -> object:
            raise BufferError("this memory is on a GPU")

    values = np.array(TOKENS, dtype=np.int64)
    router.submit(Tensor(values), session="s", now=0.0)
    assert router.peek(TOKENS) == [("r0", 16)]
    with pytest.raises(InvalidTokens, match=r"\.cpu\(\)"):
        router.submit(OnGpu(values), now=0.0)
    with pytest.raises(InvalidTokens, match='format "d"') as caught:
        router.submit(Tensor(values.astype(float)), now=0.0)
    assert ".cpu()" not in str(caught.value)
