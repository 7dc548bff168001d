# Length: one class per Rust class; the docstrings are the reference of the API.
"""The Rust core. Use `turnout.Router`, which adds a policy to the class here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias, TypedDict, final

from typing_extensions import disjoint_base

from turnout.config import Replica, Workload

_Tokens: TypeAlias = Any
"""1-D contiguous buffer of 4- or 8-byte integers (NumPy, array.array, ...), list or tuple of int, CPU tensor."""

_Numbers: TypeAlias = Any
"""1-D contiguous buffer of 8-byte integers."""

class _RawView(TypedDict):
    """A fleet view as bytes, see `turnout.policies.FleetView.from_raw`."""

    step: int
    now_s: float
    elapsed_s: float
    replicas: tuple[str, ...]
    workloads: tuple[str, ...]
    columns: dict[str, tuple[str, str, bytes]]

__all__ = [
    "Decision",
    "ModelEngine",
    "Outcome",
    "PrefixIndex",
    "Prompt",
    "Receipt",
    "Router",
    "Simulation",
    "build_info",
    "describe_kv_events",
    "engines",
    "load_report",
    "replay",
]

def build_info() -> dict[str, str]:
    """What a bug report should say: version, profile (release or debug), target and fingerprint kernel."""

def replay(journal: bytes) -> dict[str, Any]:
    """Does every event of a journal again and compares the answers. Use `turnout.record.replay`.

    Args:
        journal: Its bytes.

    Returns:
        `events` and `decisions` (counts by name), `record_bytes`, `torn_bytes`.

    Raises:
        RecordError: It is no journal, damaged, or an event is answered otherwise than it was.
    """

def engines() -> dict[str, dict[str, float]]:
    """The built-in model engines by name, each as the mapping that `Simulation` takes; times in seconds."""

def load_report(payload: bytes) -> dict[str, Any]:
    """Reads a load report of SGLang (the last frame of a message under the topic `load`).

    Args:
        payload: The message, msgpack.

    Returns:
        `running` and `waiting` (requests), `used_tokens`, `kv_tokens` (capacity; 0 = not told), `rank` (int or None).

    Raises:
        InvalidArgument: The message cannot be read.
    """

def describe_kv_events(payload: bytes) -> dict[str, Any]:
    """Says what is in a batch of cache events, without tokens and hashes: for watching engines.

    Args:
        payload: The message of vLLM or SGLang as it came (third ZMQ frame), msgpack.

    Returns:
        `timestamp_s` (of the engine's clock), `rank` (int or None), `stored_blocks`, `removed_blocks`, `cleared`,
        `unknown_events` (of a kind that is skipped), `left_out_events` (known, but not about the device's cache),
        `block_tokens` (of the last stored block, or None).

    Raises:
        InvalidArgument: The message cannot be read.
    """

@final
class Prompt:
    """A prompt that is hashed once and used often: for `submit`, `peek` and any router with the same key.

    Args:
        tokens: The token ids.
        hash_key: The router's 16-byte key.
        block_tokens: The router's block size, tokens.

    Raises:
        InvalidTokens: Something is not a token; the message gives index and value.
        InvalidArgument: Key or block size are out of range.
    """

    def __new__(cls, tokens: _Tokens, *, hash_key: bytes, block_tokens: int = 16) -> Self: ...
    def pack(self) -> bytes:
        """The fingerprints and the ids of the last partial block as bytes: for a router in another process.

        Returns:
            20 bytes, 8 for each whole block and 4 for each id after them: about half a byte per token. The key is not
            in them, and no token of a whole block can be read from them without it.
        """

    @staticmethod
    def unpack(packed: bytes, *, hash_key: bytes) -> Prompt:
        """A prompt that was hashed elsewhere.

        Args:
            packed: What `pack` returned.
            hash_key: The router's key.

        Returns:
            The prompt.

        Raises:
            InvalidTokens: It was hashed with another key.
            InvalidArgument: These are no such bytes.
        """

    def __len__(self) -> int: ...
    @property
    def block_tokens(self) -> int:
        """Tokens per block."""

@final
class Receipt:
    """The numbers behind a decision, in tokens and seconds."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt length, tokens."""

    @property
    def matched_tokens(self) -> int:
        """Longest prefix that any replica is judged to hold, tokens."""

    @property
    def indexed(self) -> bool:
        """Whether the whole prompt is in the prefix index; where not, it is charged by count."""

    @property
    def need_tokens(self) -> int:
        """What the turn adds to the commit of the replica, tokens."""

    @property
    def charge_tokens(self) -> int:
        """Charge of the replica at the decision, tokens."""

    @property
    def commit_tokens(self) -> int:
        """Commit of the replica at the decision, tokens."""

    @property
    def limit(self) -> float:
        """Value of the limit that bound (held), or of the ceiling (placed); inf when there is none."""

    @property
    def reclaimable_tokens(self) -> int:
        """Tokens of idle sessions whose lease is over (held)."""

    @property
    def cost_s(self) -> float:
        """Placement cost of the chosen replica, s; NaN when nothing was compared."""

    @property
    def runner_up_cost_s(self) -> float:
        """Placement cost of the best other replica, s; NaN when there is none."""

    @property
    def limits_step(self) -> int:
        """Step of the limits in force; -1 before the first."""

@final
class Decision:
    """What was decided about a turn."""

    @property
    def turn(self) -> str:
        """The turn's id, the caller's or a generated one; empty when it was chosen and is not tracked."""

    @property
    def attempt(self) -> int:
        """The attempt that this is about."""

    @property
    def status(self) -> Literal["placed", "held", "rejected", "expired", "lost"]:
        """Where the turn stands. `expired` and `lost` come out of `drain` only."""

    @property
    def placed(self) -> bool:
        """Send it to `replica` now."""

    @property
    def held(self) -> bool:
        """It waits; a later `drain` tells when it is placed, expired or lost."""

    @property
    def rejected(self) -> bool:
        """It can never be served like this; nothing of it is kept."""

    @property
    def replica(self) -> str | None:
        """The replica (placed, lost), or the one that came closest to taking it (held)."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens judged to be in the replica's cache."""

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Other replicas that would have taken it, cheapest first, at most three."""

    @property
    def reason(self) -> str:
        """Why, from a closed list.

        Placed: `continuation`, `admitted`, `resumed`, `moved`, `forced`, `chosen`, `elsewhere`. Held: `no_replica`,
        `overcommitted`, `reserved`, `turn_cap`, `session_cap`, `workload_cap`, `limit`, `ceiling`, `behind`. Rejected:
        `too_large`, `line_full`, `no_replica`. Expired: `deadline`. Lost: `replica_lost`, `silent`, `unconfirmed`,
        `session_ended`.
        """

    @property
    def receipt(self) -> Receipt:
        """The numbers."""

    @property
    def seq(self) -> int:
        """Number of the event that caused it."""

@final
class Outcome:
    """What became of an event."""

    @property
    def seq(self) -> int:
        """Number of the event: the order under the lock."""

    @property
    def status(self) -> Literal["done", "duplicate", "late", "unknown", "gap"]:
        """Applied; said what was known; came after the end; names nobody known; batches are missing before it."""

    @property
    def replay_from(self) -> int | None:
        """For `gap`: number of the next batch of cache events that can be applied."""

@disjoint_base
class PrefixIndex:
    """The prefix index behind one lock. Use `turnout.PrefixIndex`, which adds batches to the class here.

    Args:
        replicas: Objects with the attributes of `turnout.Replica`.
        hash_key: 16 secret bytes that key the fingerprints.
        block_tokens: Tokens per block, 1..4096.
        index_bytes: Most memory, bytes; at least 2^20.
        record: A snapshot to go on from; all other arguments come from it.

    Raises:
        InvalidArgument: A value is out of range, or a name stands twice.
        RecordError: The record cannot be used.
    """

    def __new__(
        cls,
        replicas: Iterable[Replica],
        *,
        hash_key: bytes,
        block_tokens: int = 16,
        index_bytes: int = ...,
        record: bytes | None = None,
    ) -> Self: ...
    def snapshot(self) -> bytes:
        """The whole state, handles and names included: for `turnout.PrefixIndex.restore`. It holds the hash key.

        Returns:
            The snapshot.
        """

    def add_replica(self, replica: Replica) -> int:
        """Add a replica.

        Args:
            replica: An object with the attributes of `turnout.Replica`.

        Returns:
            Its row.

        Raises:
            InvalidArgument: A value is out of range, or the name is taken.
        """

    def lose_replica(self, replica: int) -> None:
        """Remove a replica for good; its row is not used again.

        Args:
            replica: Its row.

        Raises:
            InvalidArgument: No replica has this row.
        """

    def flush(self, replica: int) -> None:
        """Forget what a replica holds: it was flushed, or got new weights.

        Args:
            replica: Its row.

        Raises:
            InvalidArgument: No replica has this row.
        """

    def prompt(self, tokens: _Tokens) -> Prompt:
        """Hash a prompt with this index's key and block size.

        Args:
            tokens: The token ids.

        Returns:
            The prompt, for `lookup`.

        Raises:
            InvalidTokens: Something is not a token.
        """

    def lookup(self, tokens: _Tokens | Prompt, *, namespace: str = "", most: int = 8) -> list[tuple[int, int]]:
        """Which replicas hold a prefix of a prompt.

        Args:
            tokens: The prompt.
            namespace: Model, adapter, salt: what makes equal tokens unequal caches.
            most: Replicas to answer at most. Of many that hold equally much, some.

        Returns:
            (row, tokens held in whole blocks), deepest first; replicas that hold nothing are left out.

        Raises:
            InvalidTokens: Something is not a token, or a `Prompt` has another key or block size.
        """

    def raw_lookup_batch(
        self, tokens: _Tokens, offsets: _Numbers, *, namespace: str = "", most: int = 8
    ) -> tuple[bytes, bytes]:
        """As `turnout.PrefixIndex.lookup_batch`, the arrays as bytes.

        Args:
            tokens: The prompts one after another.
            offsets: (N + 1,) int64 or uint64: where each begins, and the end of the last.
            namespace: As for `lookup`.
            most: Replicas to answer for each.

        Returns:
            Rows, int32, and tokens, int64.

        Raises:
            InvalidTokens: Something is not a token.
            InvalidArgument: The offsets do not rise from 0 to the number of tokens.
        """

    def open(self, tokens: _Tokens, *, replica: int | None = None, namespace: str = "") -> int:
        """Start a history with a prompt.

        Args:
            tokens: The prompt.
            replica: Row of the replica that holds it from now on, if any.
            namespace: As for `lookup`.

        Returns:
            Handle of the history. Handles are not reused.

        Raises:
            InvalidTokens: Something is not a token.
            InvalidArgument: No replica has this row.
        """

    def extend(self, history: int, tokens: _Tokens, replica: int | None = None) -> int:
        """Append tokens to a history. The cost is that of the new tokens.

        Args:
            history: Its handle.
            tokens: The new tokens.
            replica: Row of the replica that holds all of it from now on, if any.

        Returns:
            Length of the history, tokens.

        Raises:
            InvalidTokens: Something is not a token.
            InvalidArgument: The history was closed, or no replica has this row.
        """

    def place(self, history: int, replica: int) -> None:
        """Say that a replica holds a history, used now.

        Args:
            history: Its handle.
            replica: Row of the replica.

        Raises:
            InvalidArgument: The history was closed, or no replica has this row.
        """

    def fork(self, history: int, at_tokens: int | None = None) -> int:
        """Start a history on the first tokens of another: samples of one prompt, tree search, a sub-agent.

        Args:
            history: Handle of the parent.
            at_tokens: Where to fork, tokens: a multiple of the block size, or within the last partial block; None = at
                the end.

        Returns:
            Handle of the new history.

        Raises:
            InvalidArgument: The history was closed, or cannot be cut there.
        """

    def close(self, history: int) -> None:
        """Let go of a history. What replicas hold of it stays until they evict it.

        Args:
            history: Its handle.

        Raises:
            InvalidArgument: The history was closed before.
        """

    def history_tokens(self, history: int) -> int:
        """Length of a history, tokens.

        Args:
            history: Its handle.

        Raises:
            InvalidArgument: The history was closed.
        """

    def peek(self, history: int) -> tuple[int, int] | None:
        """Who holds most of a history. No token is read.

        Args:
            history: Its handle.

        Returns:
            (row, tokens held in whole blocks); None when nobody holds any.

        Raises:
            InvalidArgument: The history was closed.
        """

    def holders(self, history: int, most: int = 8) -> list[tuple[int, int]]:
        """Who holds how much of a history.

        Args:
            history: Its handle.
            most: Replicas to answer at most.

        Returns:
            As `lookup`.

        Raises:
            InvalidArgument: The history was closed.
        """

    def raw_peek_batch(self, histories: _Numbers, most: int = 1) -> tuple[bytes, bytes]:
        """As `turnout.PrefixIndex.peek_batch`, the arrays as bytes.

        Args:
            histories: (N,) uint64: handles.
            most: Replicas to answer for each.

        Returns:
            Rows, int32, and tokens, int64.

        Raises:
            InvalidArgument: A history was closed, or is no handle.
        """

    def kv_events(self, replica: int, payload: bytes, *, sequence: int, rank: int | None = None) -> int | None:
        """Apply a batch of cache events of an engine: from then on those say what the replica holds.

        Args:
            replica: Row of the replica.
            payload: The message of vLLM or SGLang as it came (third ZMQ frame), msgpack.
            sequence: Its number (second ZMQ frame).
            rank: Data-parallel rank; None = as the message says, else 0.

        Returns:
            None; or, where batches are missing and this one was not applied, the number to replay from.

        Raises:
            InvalidArgument: The message cannot be read, or no replica has this row.
        """

    def drop_namespace(self, namespace: str) -> bool:
        """Take the name away from a namespace, in constant time: a new one of the same name starts empty.

        Histories in it live on, judged to be held by nobody; the memory comes back while the index is used.

        Args:
            namespace: Its name.

        Returns:
            Whether there was one.
        """

    def stats(self) -> dict[str, int]:
        """Counters since the start, and sizes now.

        Returns:
            By name. Now: `histories`, `blocks`, `runs`, `bytes`, `cut_histories` (their end is not indexed). Since the
            start: `stale` (calls with a closed handle), `full` (for want of room), and the `feed_` counters.
        """

    def audit(self) -> None:
        """Recompute every count from scratch.

        Raises:
            InternalError: A defect of this library, naming the first difference.
        """

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the replicas ever added, by row."""

    @property
    def block_tokens(self) -> int:
        """Tokens per block."""

    @property
    def hash_key(self) -> bytes:
        """The secret key, for whoever hashes elsewhere."""

@disjoint_base
class Router:
    """The decision core behind one lock. Times are seconds on one monotonic clock, by default `time.monotonic()`.

    Every method that takes `now` raises `InvalidArgument` when it is not in 0..4e9. A call that raises changes nothing.

    Args:
        replicas: Objects with the attributes of `turnout.Replica`.
        workloads: Objects with the attributes of `turnout.Workload`; none = one called `default`.
        hash_key: 16 secret bytes that key the fingerprints.
        block_tokens: Tokens per index block, 1..4096.
        index_bytes: Most memory of the prefix index, bytes; at least 2^20.
        seed: Seed of the generator that breaks ties of placement.
        max_held: Turns that may wait; one more is rejected.
        control_period_s: Time between control steps, s; inf = never due by time.
        turn_ttl_s: Silence after which a running turn is given up, s.
        session_ttl_s: Idleness after which a session ends, s.
        infer_sessions: A prompt that is submitted without a session continues the session whose whole history it begins
            with, else it begins one that stays (docs/decisions/012). Otherwise it is a session by itself.
        record: A snapshot or a journal to go on from; all other arguments but `now` come from it.
        now: Time at which it goes on, s.

    Raises:
        InvalidArgument: A value is out of range, or a name stands twice.
        RecordError: The record cannot be used.
    """

    def __new__(
        cls,
        replicas: Iterable[Replica],
        workloads: Iterable[Workload] | None = None,
        *,
        hash_key: bytes,
        block_tokens: int = 16,
        index_bytes: int = ...,
        seed: int = 0,
        max_held: int = 1_000_000,
        control_period_s: float = 1.0,
        turn_ttl_s: float = 7200.0,
        session_ttl_s: float = 3600.0,
        infer_sessions: bool = False,
        record: bytes | None = None,
        now: float | None = None,
    ) -> Self: ...
    def submit(
        self,
        prompt: _Tokens | Prompt | None = None,
        *,
        append: _Tokens | None = None,
        base_tokens: int | None = None,
        prompt_tokens: int | None = None,
        turn: str | None = None,
        attempt: int = 0,
        session: str | None = None,
        parent: str | None = None,
        workload: str | None = None,
        namespace: str | None = None,
        max_new_tokens: int | None = None,
        samples: int = 1,
        group: str | None = None,
        group_size: int | None = None,
        expected_tokens: int | None = None,
        priority: int = 0,
        candidates: Sequence[str] | None = None,
        avoid: Sequence[str] | None = None,
        at: str | None = None,
        bias: Mapping[str, float] | None = None,
        owner: str | None = None,
        hold: bool = True,
        deadline_s: float | None = None,
        now: float | None = None,
    ) -> Decision:
        """Decide about a turn: placed, held or rejected.

        Exactly one of `prompt`, `append` and `prompt_tokens` says what the engine is asked. The same turn and attempt
        again gets the decision of the moment, so polling works; a higher attempt aborts the earlier one and avoids its
        replica.

        Args:
            prompt: The whole prompt.
            append: The tokens that follow the session's history; together with `base_tokens`.
            base_tokens: History length that the caller assumes, tokens.
            prompt_tokens: Prompt length, tokens, where ids are not known.
            turn: The caller's id of the turn; generated when absent.
            attempt: Number of the attempt.
            session: The session; absent = a session of this turn alone, or with `infer_sessions` the one that the
                prompt continues.
            parent: The session that waits for this one, as an agent does for its sub-agents: while it lives, this one
                counts in no cap of sessions, and what its ancestors hold idle may be reclaimed for it.
            workload: The workload; absent = the session's, else the first one.
            namespace: Model, adapter, salt: what makes equal tokens unequal caches.
            max_new_tokens: Upper bound of the output, of each sample, tokens.
            samples: Outputs asked for at once, 1..65536: each is reserved for. Afterwards they stay in the cache as
                long as the engine keeps them, and are charged to nobody but the one that `complete` keeps.
            group: Turns of one prompt that are wanted together, as the samples of one question: they queue where the
                first of them began, and `Limits.cost_spread` weighs what they take from each other.
            group_size: Turns that the group will have, 1..65536: it is remembered until they came. None = it ends when
                none of its turns is open.
            expected_tokens: Output that the caller expects, of each sample, tokens: it stands for that of the workload
                in the placement cost and, where the policy reserves outputs, in the reservation.
            priority: Order among the held turns of the workload, highest first; 0 leaves it to the session's `hint`.
                Paused sessions go before new ones whatever theirs is.
            candidates: Replicas that may serve the turn; absent = all.
            avoid: Replicas that serve it only where no other candidate does. One that is not in the fleet is avoided
                already, so it is no error.
            at: The replica that the caller has chosen itself. Never held; counted as `forced` where the limits say no.
            bias: Seconds to add to the placement cost of some replicas; negative ones attract.
            owner: Who answers for the session, see `owner_lost`. The last one named does.
            hold: False: never wait; limits are exceeded instead, counted as `forced`.
            deadline_s: Time after which the held turn expires, s from now.
            now: Time, s.

        Returns:
            The decision.

        Raises:
            InvalidTokens: Something is not a token, there are none, or a `Prompt` has another key or block size.
            UnknownWorkload: No workload has this name.
            UnknownReplica: A candidate, `at` or a key of `bias` does not exist.
            UnknownSession: An append names a session that does not exist.
            HistoryMismatch: The append does not fit the history; send the whole prompt.
            TurnConflict: The id was used before with other content, or has ended.
            InvalidArgument: The arguments do not fit together.
        """

    def choose(
        self,
        prompt: _Tokens | Prompt | None = None,
        *,
        append: _Tokens | None = None,
        base_tokens: int | None = None,
        prompt_tokens: int | None = None,
        session: str | None = None,
        workload: str | None = None,
        namespace: str | None = None,
        max_new_tokens: int | None = None,
        expected_tokens: int | None = None,
        candidates: Sequence[str] | None = None,
        avoid: Sequence[str] | None = None,
        bias: Mapping[str, float] | None = None,
        now: float | None = None,
    ) -> Decision:
        """Choose a replica for a turn that is not tracked: for hosts that never say when a turn ends.

        Where its session is charged, else the cheapest. No limit is asked, nothing is charged, nothing has to be
        completed; the prompt counts as computed there, so that what shares it follows.

        Args:
            prompt: The whole prompt.
            append: The tokens that follow the session's history; together with `base_tokens`.
            base_tokens: History length that the caller assumes, tokens.
            prompt_tokens: Prompt length, tokens, where ids are not known.
            session: The session; one that is not known stays unknown.
            workload: As for `submit`.
            namespace: As for `submit`.
            max_new_tokens: Upper bound of the output, tokens.
            expected_tokens: As for `submit`.
            candidates: As for `submit`.
            avoid: As for `submit`.
            bias: As for `submit`.
            now: Time, s.

        Returns:
            A decision without turn id: placed, or rejected (`no_replica`).

        Raises:
            InvalidTokens: As for `submit`.
            UnknownWorkload: No workload has this name.
            UnknownReplica: A candidate or a key of `bias` does not exist.
            UnknownSession: An append names a session that does not exist.
            HistoryMismatch: The append does not fit the history; send the whole prompt.
            InvalidArgument: The arguments do not fit together.
        """

    def peek(
        self, prompt: _Tokens | Prompt | None = None, *, session: str | None = None, namespace: str = ""
    ) -> list[tuple[str, int]]:
        """Which replicas hold a prefix of a prompt, or of a session's history. Changes nothing.

        Args:
            prompt: The prompt, or
            session: the session.
            namespace: Namespace of the prompt.

        Returns:
            (replica, cached tokens), best first; replicas that hold nothing are left out.

        Raises:
            InvalidTokens: Something is not a token, or a `Prompt` has another key or block size.
            UnknownSession: No session has this name.
            InvalidArgument: Both or neither of prompt and session are given.
        """

    def prompt(self, tokens: _Tokens) -> Prompt:
        """Hash a prompt with this router's key and block size.

        Args:
            tokens: The token ids.

        Returns:
            The prompt.

        Raises:
            InvalidTokens: Something is not a token.
        """

    def progress(
        self, turn: str, output_tokens: int, *, served_by: str | None = None, now: float | None = None
    ) -> Outcome:
        """Report output so far: at the first token, then every 512 tokens or 1 s. The first report ends the prefill.

        Args:
            turn: A placed turn, or a held one that `served_by` serves.
            output_tokens: Tokens generated so far, by all samples together.
            served_by: The replica that serves it, where that is not the one it was placed on: the charge moves there.
                While other turns of its session run, the charge stays with them.
            now: Time, s.

        Returns:
            `done`, `duplicate` when it says nothing new, `late` when the turn has ended.

        Raises:
            UnknownTurn: The turn was never submitted.
            UnknownReplica: `served_by` is not in the fleet.
            InvalidArgument: `output_tokens` is out of range, 0 to 2^40.
        """

    def complete(
        self,
        turn: str,
        output: _Tokens | Sequence[_Tokens] | None = None,
        *,
        output_tokens: int | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        served_by: str | None = None,
        keep: int | None = None,
        now: float | None = None,
    ) -> Outcome:
        """End a turn: prompt and output become the session's history. Never fails for an unknown turn.

        Args:
            turn: The turn.
            output: Ids of the generated tokens; of a turn with several samples a list of such, one per sample.
            output_tokens: Their number, of all samples together, where ids are not known. Neither given = what was
                reported last.
            prompt_tokens: Length of the prompt as the engine counted it, where that is not what was submitted, 1..2^40:
                the history is so long.
            cached_tokens: Prompt tokens that the engine served from its cache.
            served_by: The replica that served it, where that is not the one it was placed on: the charge moves there. A
                held turn that was served becomes history by it. One that is not in the fleet has gone since: the
                session is paused.
            keep: Number of the sample that continues the session, of a turn with several; None = none of them, the
                session goes on from the prompt.
            now: Time, s.

        Returns:
            `done`, `duplicate`, `late` when it ended otherwise, `unknown`.

        Raises:
            InvalidTokens: Something in `output` is not a token; the turn stays as it was.
            InvalidArgument: A count is out of range, there are not as many outputs as samples, or `keep` is no sample.
        """

    def abort(
        self,
        turn: str,
        output: _Tokens | Sequence[_Tokens] | None = None,
        *,
        output_tokens: int | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        served_by: str | None = None,
        keep: int | None = None,
        reason: Literal["cancelled", "timeout", "error", "stale"] = "cancelled",
        retry: bool = False,
        now: float | None = None,
    ) -> Outcome:
        """End a held or placed turn unfinished. Never fails for an unknown turn.

        What it generated stays history; without any report it never was.

        Args:
            turn: The turn.
            output: Ids of the tokens generated before the end, as for `complete`.
            output_tokens: Their number, where ids are not known.
            prompt_tokens: As for `complete`.
            cached_tokens: Prompt tokens that the engine served from its cache.
            served_by: As for `complete`.
            keep: As for `complete`.
            reason: Why: nobody wants it, it took too long, the engine failed, or its weights are too old. Counted, and
                after `timeout` and `error` a retry avoids the replica.
            retry: The turn comes back: the next attempt with its id, or the next turn of its session, waits where this
                one did, and a session of this turn alone goes on.
            now: Time, s.

        Returns:
            `done`, `duplicate`, `late` when it ended otherwise, `unknown`.

        Raises:
            InvalidTokens: Something in `output` is not a token; the turn stays as it was.
            InvalidArgument: A value is out of range, as for `complete`.
        """

    def fork(self, session: str, child: str, *, now: float | None = None) -> Outcome:
        """Start a session on the history of another; it charges only what differs.

        Args:
            session: The parent.
            child: Name of the new session.
            now: Time, s.

        Returns:
            `duplicate` when the fork exists already.

        Raises:
            UnknownSession: The parent does not exist.
            InvalidArgument: The child's name is in use.
        """

    def hint(
        self,
        session: str,
        *,
        idle_s: float | None = None,
        expected_tokens: int | None = None,
        priority: int | None = None,
        now: float | None = None,
    ) -> Outcome:
        """Say what is expected of a session. What is left out stays as it was. Never fails for an unknown session.

        Args:
            session: The session.
            idle_s: Time from now, or from the end of its running turn on, until its next turn, s; forgotten when that
                comes. Longer than its lease: it may be reclaimed at once. Shorter: its lease ends then. A hint protects
                nobody for longer than the limits do.
            expected_tokens: Output expected of its next turn, tokens; as that of `submit`, which wins.
            priority: Priority of its turns from now on, those that wait included, where `submit` names none.
            now: Time, s.

        Returns:
            `done` or `unknown`.

        Raises:
            InvalidArgument: A value is out of range: `idle_s` is at least 0, `expected_tokens` at most 2^40.
        """

    def end_session(self, session: str, *, completed: bool = True, now: float | None = None) -> Outcome:
        """End a session: its charge is gone. Never fails for an unknown session.

        Turns that are open, held or running, are aborted and leave by `drain` as lost, `session_ended`.

        Args:
            session: The session.
            completed: Whether it counts in the mixture and in the estimates.
            now: Time, s.

        Returns:
            `done` or `unknown`.
        """

    def add_replica(self, replica: Replica, *, now: float | None = None) -> Outcome:
        """Add a replica.

        Args:
            replica: The replica; the same configuration again changes nothing.
            now: Time, s.

        Returns:
            `done` or `duplicate`.

        Raises:
            InvalidArgument: A value is out of range, or the name is in use with another configuration.
        """

    def set_replica(self, replica: Replica, *, now: float | None = None) -> Outcome:
        """Give a replica a new configuration, and open it again when it was drained.

        What is charged there stays; idle sessions above a smaller capacity are paused. Until the next control step a
        new capacity is used to 95 %, with an overflow of 98 %.

        Args:
            replica: An object with the attributes of `turnout.Replica`; its name says which.
            now: Time, s.

        Returns:
            `duplicate` when it is open and has this configuration already.

        Raises:
            UnknownReplica: No replica has this name.
            InvalidArgument: A value is out of range.
        """

    def drain_replica(self, name: str, *, now: float | None = None) -> Outcome:
        """Let a replica run dry: it admits nobody, running turns go on, idle sessions move with their next turn.

        Args:
            name: The replica.
            now: Time, s.

        Returns:
            `duplicate` when it is closed already.

        Raises:
            UnknownReplica: No replica has this name.
        """

    def remove_replica(self, name: str, *, now: float | None = None) -> Outcome:
        """Drain a replica and let it go once nothing runs there; at once when nothing does.

        Args:
            name: The replica.
            now: Time, s.

        Returns:
            `duplicate` when it is being removed already.

        Raises:
            UnknownReplica: No replica has this name.
        """

    def observe(
        self,
        replica: str,
        *,
        kv_fraction: float | None = None,
        running: int | None = None,
        waiting: int | None = None,
        preemptions_total: int | None = None,
        kv_tokens: float | None = None,
        now: float | None = None,
    ) -> Outcome:
        """Note what an engine reports about itself. It feeds the view; every part may be left out.

        Args:
            replica: The replica.
            kv_fraction: Share of its KV blocks in use, 0..1.
            running: Requests that run.
            waiting: Requests that wait inside the engine.
            preemptions_total: Preemptions since the engine started; a count that falls back is a restart.
            kv_tokens: KV capacity, tokens, where the engine knows it better than the configuration.
            now: Time, s.

        Returns:
            `done`.

        Raises:
            UnknownReplica: No replica has this name.
            InvalidArgument: A value is out of range.
        """

    def owner_lost(self, owner: str, *, now: float | None = None) -> Outcome:
        """End every session of an owner that is gone, uncounted in the mixture. Never fails for an unknown owner.

        Their open turns leave by `drain` as lost, `session_ended`: whoever waits for one is told.

        Args:
            owner: The owner, as `submit` was told.
            now: Time, s.

        Returns:
            `unknown` when nobody's sessions are its own.
        """

    def lose_replica(self, name: str, *, now: float | None = None) -> Outcome:
        """Remove a replica that is gone.

        Its turns leave by `drain` as `lost`; its sessions are paused and keep their place.

        Args:
            name: The replica.
            now: Time, s.

        Returns:
            `done`.

        Raises:
            UnknownReplica: No replica has this name.
        """

    def weights_updated(
        self,
        version: int,
        *,
        mode: Literal["flush", "keep", "salt"] = "flush",
        replica: str | None = None,
        now: float | None = None,
    ) -> Outcome:
        """Note new weights.

        Args:
            version: The version, at least 0. The same again changes nothing.
            mode: `flush`: the engine drops its cache. `salt`: new turns use a new namespace. `keep`: the cache stays.
            replica: The replica; None = all.
            now: Time, s.

        Returns:
            `done` or `duplicate`.

        Raises:
            UnknownReplica: No replica has this name.
            InvalidArgument: Version or mode are out of range.
        """

    def kv_events(
        self, replica: str, payload: bytes, *, sequence: int, rank: int | None = None, now: float | None = None
    ) -> Outcome:
        """Apply a batch of cache events of an engine: from then on those say what the replica holds.

        A first batch with number 0, or an event that the cache was cleared, makes the knowledge whole
        (`FleetView.exact`); until then own decisions count as well. Of a hybrid model the first cache group of whole
        contexts is followed. Blocks with an adapter `a` or a cache salt `s` are in namespace `a`, `s` or `a/s`.

        Args:
            replica: Name of the replica.
            payload: The message of vLLM or SGLang as it came (third ZMQ frame), msgpack.
            sequence: Its number (second ZMQ frame).
            rank: Data-parallel rank; None = as the message says, else 0.
            now: Time, s.

        Returns:
            `done`; `duplicate`; or `gap` when batches are missing: this one was not applied, replay from `replay_from`.

        Raises:
            InvalidArgument: The message cannot be read.
            UnknownReplica: No replica has this name.
        """

    def reset_feed(self, replica: str, *, rank: int = 0, next_sequence: int = 0, now: float | None = None) -> Outcome:
        """Start the feed of one rank anew, after a gap that cannot be replayed: nothing is known of its cache.

        Args:
            replica: Name of the replica.
            rank: Data-parallel rank.
            next_sequence: Number of the next batch.
            now: Time, s.

        Returns:
            `done`.

        Raises:
            UnknownReplica: No replica has this name.
        """

    def end_feeds(self, replica: str, *, now: float | None = None) -> Outcome:
        """End the feeds of a replica: own decisions say what it holds again, starting from what the feeds said.

        Args:
            replica: Name of the replica.
            now: Time, s.

        Returns:
            `done`.

        Raises:
            UnknownReplica: No replica has this name.
        """

    def tick(self, *, now: float | None = None) -> Outcome:
        """Run the timers that are due; call it at `wake_at`.

        Args:
            now: Time, s.

        Returns:
            `done`.
        """

    def drain(self) -> list[Decision]:
        """Take the decisions about turns that were held or lost: each exactly once, in order."""

    def expect_callers(self, after_s: float, *, now: float | None = None) -> Outcome:
        """Give up every turn that is open now unless an event names it in time: its caller may be gone.

        Args:
            after_s: The time, s. Those that nobody names leave the outbox as lost, `unconfirmed`.
            now: Time, s.

        Returns:
            `done`.

        Raises:
            InvalidArgument: `after_s` is negative.
        """

    def snapshot(self) -> bytes:
        """The whole state as bytes, for `turnout.Router.restore`. It holds the hash key.

        Returns:
            The snapshot.
        """

    def start_journal(self) -> None:
        """Keep a journal from now on: the state of now, and every event with a digest of its answer."""

    def stop_journal(self) -> None:
        """Keep no journal any more."""

    def take_journal(self) -> bytes:
        """Take what was added to the journal since the last call; see `turnout.record` for files.

        Returns:
            The bytes; none without a journal.
        """

    def raw_view(self, *, now: float | None = None) -> _RawView:
        """Copy the measured state of the fleet, as bytes; see `turnout.Router.view`.

        Args:
            now: Time, s.

        Returns:
            Step, times in s, names of the rows, and by column its shape (`R`, `W` or `RW`), dtype and row-major bytes.
        """

    def raw_set_limits(
        self,
        fields: Mapping[str, Any],
        *,
        step: int,
        replicas: Sequence[str],
        workloads: Sequence[str],
        now: float | None = None,
    ) -> Outcome:
        """Put limits into force; see `turnout.Router.set_limits`.

        Args:
            fields: Numbers and float64 buffers by field name, matrices row-major, replicas by workloads; text for
                `placement`, a mapping from names to numbers for `placement_args`, a truth value for `shed`.
            step: Step of the view that they were computed from.
            replicas: Names of the replica rows.
            workloads: Names of the workload rows.
            now: Time, s.

        Returns:
            `done`.

        Raises:
            PolicyError: A field cannot be enforced; the limits in force stay.
            InvalidArgument: Newer limits are in force.
        """

    def stats(self) -> dict[str, int]:
        """Counters since the start, and sizes now.

        Returns:
            By name. Turns since the start: `submitted`, `placed`, `held`, `rejected`, `expired`, `lost`, `completed`,
            `aborted`, `forced`. Sessions since the start: `sessions_finished`, `sessions_dropped`, `pauses`, `moves`,
            `lost_tokens`; prompts that did not continue the history: `edited`, `shortened`, `other_namespace`.
            Index since the start: `mismatches` (refused appends), `counted_outputs` (turns whose output has no ids),
            `surprises` (turns that found more than two blocks less cached than was forecast),
            `index_full`, `paths_dropped`, and the `feed_` counters of cache events. Events since the start: `late`,
            `unknown`, `clock_clamped`. Now: `open_turns`, `held_turns`,
            `live_sessions`, `index_runs`, `index_blocks` and `index_bytes` (bytes).
        """

    def audit(self) -> None:
        """Recompute everything from scratch and compare: for tests and doubts, O(everything).

        Raises:
            InternalError: Something differs; the message says what.
        """

    @property
    def wake_at(self) -> float | None:
        """When `tick` is due next, s; None when nothing is."""

    @property
    def policy_due(self) -> bool:
        """Whether a control step is due."""

    @property
    def hash_key(self) -> bytes:
        """The 16 bytes that key the fingerprints."""

    @property
    def block_tokens(self) -> int:
        """Tokens per index block."""

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the replicas, in row order."""

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, in row order."""

@final
class ModelEngine:
    """One model engine for a server: paged KV with a prefix cache, chunked prefill, continuous batching, preemption.

    It owns no clock: the caller says how late it is. The next token is a hash of all tokens before it and of the seeds,
    a byte of lower-case text; equal prompts are answered alike.

    Args:
        engine: Step times, see `engines`.
        kv_tokens: KV capacity, tokens; rounded down to whole blocks.
        block_tokens: Block size, tokens.
        seed: Seed of all output.
        dialect: Form of `kv_batches`: "vllm" or "sglang".

    Raises:
        InvalidArgument: Something cannot run; the message names it.

    Example:
        >>> from turnout import _core
        >>> model = _core.ModelEngine(_core.engines()["qwen3-8b-h200"], kv_tokens=4096)
        >>> model.submit(1, list(range(40)), max_new_tokens=3, now=0.0)
        3
        >>> [(request, len(tokens), cached, finished) for request, tokens, cached, _, finished in model.advance(1.0)]
        [(1, 3, 0, True)]
    """

    def __new__(
        cls,
        engine: Mapping[str, float],
        *,
        kv_tokens: int,
        block_tokens: int = 16,
        seed: int = 0,
        dialect: str = "vllm",
    ) -> Self: ...
    def submit(
        self, request: int, tokens: _Tokens, *, now: float, max_new_tokens: int | None = None, seed: int = 0
    ) -> int:
        """A request arrives.

        Args:
            request: Its number, chosen by the caller.
            tokens: The prompt.
            now: Time, s.
            max_new_tokens: Output length, tokens; None = it ends by itself after 16 to 255.
            seed: Seed of this request's output.

        Returns:
            How many output tokens it will have.

        Raises:
            InvalidArgument: The number is in use, the prompt is empty, or the memory never holds it all.
            InvalidTokens: Something is not a token.
        """

    def advance(self, now: float) -> list[tuple[int, list[int], int, int, bool]]:
        """Run to a time.

        Args:
            now: Time, s.

        Returns:
            Of each request with news: its number, new output tokens, prompt tokens that were cached, how often it was
            preempted, whether it is finished.
        """

    @property
    def next_at(self) -> float | None:
        """When the step in flight ends, s; None while idle."""

    def abort(self, request: int, *, now: float) -> bool:
        """End a request: at once while it waits, else at the end of the step in flight. Nothing more is told of it.

        Args:
            request: Its number.
            now: Time, s.

        Returns:
            Whether it was open.
        """

    def flush(self, *, now: float) -> None:
        """Forget what is cached, as after a weight update. What runs goes on.

        Args:
            now: Time, s.
        """

    def kv_batches(self, *, timestamp_s: float) -> list[bytes]:
        """Cache events since the last call, one payload per step with news.

        Args:
            timestamp_s: Wall clock that they carry, seconds since 1970.

        Returns:
            msgpack payloads as the engines of the dialect send them.
        """

    def load_stat(self) -> bytes:
        """The payload of SGLang's `LoadStat` message."""

    def counters(self) -> dict[str, float]:
        """The state in numbers; what ends in `_total` counts from the start."""

@final
class Simulation:
    """A closed loop of sessions on model engines behind the real router, on a discrete-event clock.

    Args:
        replicas: Objects with the attributes of `turnout.Replica`, each an engine of that KV capacity.
        workloads: Objects with the attributes of `turnout.Workload`.
        scenario: `turnout.simulate.Scenario.to_raw()`.
        engine: Step times, see `engines`.
        concurrency: Sessions outstanding at once.
        sessions: Sessions to start at most; None = no bound beside the list.
        repeat: Play the list again, with fresh private content, when it is exhausted.
        duration_s: Simulated time at which to stop, s.
        seed: Seed of the router's ties.
        block_tokens: Block size of router and engines, tokens.
        control_period_s: Time between control steps, s.
        sample_period_s: Time between samples of the series, s.
        flush_every_sessions: New weights, and empty caches, whenever so many more sessions have finished; None = never.
        outages: (index of the replica, time at which it goes, how long it is away), s. It comes back empty.
        feed: (lag in s, share of batches that are lost and come by replay) of the engines' cache events; None = the
            router is not told and judges by its own decisions.

    Raises:
        InvalidArgument: Something cannot be played; the message names it.
    """

    def __new__(
        cls,
        replicas: Iterable[Replica],
        workloads: Iterable[Workload],
        *,
        scenario: Mapping[str, Any],
        engine: Mapping[str, float],
        concurrency: int,
        sessions: int | None = None,
        repeat: bool = False,
        duration_s: float = ...,
        seed: int = 0,
        block_tokens: int = 16,
        control_period_s: float = 1.0,
        sample_period_s: float = 5.0,
        flush_every_sessions: int | None = None,
        outages: Sequence[tuple[int, float, float]] = ...,
        feed: tuple[float, float] | None = None,
    ) -> Self: ...
    def advance(self) -> bool:
        """Play on, without the interpreter, to the next control step (True) or to the end (False)."""

    def raw_view(self) -> _RawView:
        """State for a policy, see `Router.raw_view`."""

    def raw_set_limits(
        self, fields: Mapping[str, Any], *, step: int, replicas: Sequence[str], workloads: Sequence[str]
    ) -> None:
        """Limits from a policy, see `Router.raw_set_limits`.

        Args:
            fields: Numbers and float64 buffers by field name.
            step: Step of the view.
            replicas: Names of the replica rows.
            workloads: Names of the workload rows.

        Raises:
            PolicyError: A field cannot be enforced.
        """

    def result(self) -> dict[str, Any]:
        """Counters, overall and under `workloads` by name."""

    def finishes(self) -> dict[str, bytes]:
        """The sessions that finished, in that order.

        Columns: `session` (place in the list) and `lap` (how often the list was played before), int64; `started_s`
        (first turn submitted) and `finished_s` (last turn completed), float64.
        """

    def series(self) -> dict[str, bytes]:
        """Samples over time by name, each a column of float64."""

    def audit(self) -> None:
        """Check that every submitted turn is accounted for and that the router's books balance.

        Raises:
            InternalError: Something differs.
        """

    @property
    def now_s(self) -> float:
        """Simulated time, s."""

    @property
    def finished_fraction(self) -> float:
        """How far the run is, 0..1."""
