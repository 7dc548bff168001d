//! What is played: sessions, their turns, and the tokens of their prompts.
//!
//! Prompts are given as run-length block ids; equal ids are equal tokens. Tokens are synthesised from them, so that what
//! reaches the router and the engines are real token sequences with the sharing of the source.

use turnout_core::error::{Error, Result};
use turnout_core::prompt::{BlockHasher, Prompt};

use crate::engine::cache::Chain;

/// Size of the synthetic vocabulary (that of Qwen3).
const VOCABULARY: u64 = 151_936;

/// Sessions and turns as flat arrays: S sessions, T turns, N runs of block ids.
#[derive(Debug, Clone, Default)]
pub struct Scenario {
    /// Tokens per block of the ids.
    pub block_tokens: u64,
    /// (S,) workload index.
    pub session_workload: Vec<i64>,
    /// (S + 1,) first turn of each session.
    pub session_first_turn: Vec<i64>,
    /// (S,) session that starts this one, or -1.
    pub session_parent: Vec<i64>,
    /// (S,) turn of the parent, counted within it, that must complete first; -1 without parent.
    pub session_after_turn: Vec<i64>,
    /// (T,) prompt length, tokens.
    pub turn_prompt_tokens: Vec<i64>,
    /// (T,) output length, tokens.
    pub turn_output_tokens: Vec<i64>,
    /// (T,) seconds from the previous completion, or the session's start, to the submit.
    pub turn_gap_s: Vec<f64>,
    /// (T + 1,) first run of each turn.
    pub turn_first_run: Vec<i64>,
    /// (N,) first id of each run.
    pub run_first_id: Vec<i64>,
    /// (N,) ids in each run.
    pub run_blocks: Vec<i64>,
    /// (N,) whether the ids stay the same when the list of sessions is played again.
    pub run_shared: Vec<bool>,
}

impl Scenario {
    /// Checks the arrays against each other.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the array and the place.
    pub fn check(&self, workloads: usize) -> Result<()> {
        let bad = |argument: &'static str, value: String, accepted: &'static str| Err(Error::InvalidArgument { argument, value, accepted });
        let (sessions, turns, runs) = (self.session_workload.len(), self.turn_prompt_tokens.len(), self.run_first_id.len());
        if self.block_tokens == 0 {
            return bad("scenario.block_tokens", "0".into(), "at least 1");
        }
        if sessions == 0 {
            return bad("scenario.session_workload", "no sessions".into(), "at least one session");
        }
        let lengths = [
            ("scenario.session_first_turn", self.session_first_turn.len(), sessions + 1),
            ("scenario.session_parent", self.session_parent.len(), sessions),
            ("scenario.session_after_turn", self.session_after_turn.len(), sessions),
            ("scenario.turn_output_tokens", self.turn_output_tokens.len(), turns),
            ("scenario.turn_gap_s", self.turn_gap_s.len(), turns),
            ("scenario.turn_first_run", self.turn_first_run.len(), turns + 1),
            ("scenario.run_blocks", self.run_blocks.len(), runs),
            ("scenario.run_shared", self.run_shared.len(), runs),
        ];
        if let Some((name, got, want)) = lengths.into_iter().find(|&(_, got, want)| got != want) {
            return bad(name, format!("{got} items instead of {want}"), "arrays whose lengths fit each other");
        }
        partition("scenario.session_first_turn", &self.session_first_turn, turns, 1)?;
        partition("scenario.turn_first_run", &self.turn_first_run, runs, 0)?;
        for session in 0..sessions {
            if usize::try_from(self.session_workload[session]).ok().is_none_or(|workload| workload >= workloads) {
                return bad("scenario.session_workload", format!("{} at {session}", self.session_workload[session]), "an index of a workload");
            }
            if self.session_parent[session] >= session as i64 {
                return bad("scenario.session_parent", format!("{} at {session}", self.session_parent[session]), "-1, or an earlier session");
            }
        }
        if self.session_parent[0] >= 0 {
            return bad("scenario.session_parent", "every session has a parent".into(), "at least one session without");
        }
        for turn in 0..turns {
            let (prompt, output, gap) = (self.turn_prompt_tokens[turn], self.turn_output_tokens[turn], self.turn_gap_s[turn]);
            if prompt < 1 {
                return bad("scenario.turn_prompt_tokens", format!("{prompt} at {turn}"), "at least 1");
            }
            if output < 1 {
                return bad("scenario.turn_output_tokens", format!("{output} at {turn}"), "at least 1");
            }
            if !(gap >= 0.0 && gap.is_finite()) {
                return bad("scenario.turn_gap_s", format!("{gap} at {turn}"), "finite seconds of at least 0");
            }
            let blocks: i64 = self.runs(turn).map(|run| self.run_blocks[run]).sum();
            if blocks != prompt / self.block_tokens as i64 || self.runs(turn).any(|run| self.run_blocks[run] < 1 || self.run_first_id[run] < 0) {
                return bad(
                    "scenario.run_blocks",
                    format!("{blocks} blocks in turn {turn} of {prompt} tokens"),
                    "runs that cover the full blocks of the prompt",
                );
            }
        }
        Ok(())
    }

    /// Turns of a session.
    pub(crate) fn turns(&self, session: usize) -> std::ops::Range<usize> {
        self.session_first_turn[session] as usize..self.session_first_turn[session + 1] as usize
    }

    fn runs(&self, turn: usize) -> std::ops::Range<usize> {
        self.turn_first_run[turn] as usize..self.turn_first_run[turn + 1] as usize
    }

    /// Leading blocks that two turns have in common.
    fn common_blocks(&self, a: usize, b: usize) -> u64 {
        let (mut a, mut b) = (self.runs(a), self.runs(b));
        let mut common = 0;
        let (mut left, mut right) = ((0, 0), (0, 0));
        loop {
            if left.1 == 0 {
                let Some(run) = a.next() else { return common };
                left = (self.run_first_id[run], self.run_blocks[run]);
            }
            if right.1 == 0 {
                let Some(run) = b.next() else { return common };
                right = (self.run_first_id[run], self.run_blocks[run]);
            }
            if left.0 != right.0 {
                return common;
            }
            let step = left.1.min(right.1);
            common += step as u64;
            left = (left.0 + step, left.1 - step);
            right = (right.0 + step, right.1 - step);
        }
    }

    /// Whether the next turn starts with all full blocks of this one, so that its tail and output can be read off there.
    fn extends(&self, session: usize, turn: usize) -> bool {
        turn + 1 < self.turns(session).end && self.common_blocks(turn, turn + 1) >= self.turn_prompt_tokens[turn] as u64 / self.block_tokens
    }
}

/// Checks that `bounds` cuts `0..total` into consecutive parts of at least `least` items.
fn partition(argument: &'static str, bounds: &[i64], total: usize, least: i64) -> Result<()> {
    let ordered = bounds.windows(2).all(|pair| pair[1] - pair[0] >= least);
    if bounds.first() == Some(&0) && bounds.last() == Some(&(total as i64)) && ordered {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        argument,
        value: "bounds that do not cut the items into parts".into(),
        accepted: "ascending bounds from 0 to the number of items",
    })
}

/// The token path of a session that is being played, laid out as far as its turns extend each other.
#[derive(Debug)]
pub(crate) struct Path {
    session: usize,
    /// How often the list of sessions was played before.
    lap: u64,
    /// Last turn whose prompt and output are laid out.
    last: Option<usize>,
    /// Length of prompt and output of the turn that was played last.
    played: usize,
    tokens: Vec<u32>,
    fingerprints: Vec<u64>,
    chain: Chain,
}

impl Path {
    pub(crate) fn new(session: usize, lap: u64) -> Self {
        Self { session, lap, last: None, played: 0, tokens: Vec::new(), fingerprints: Vec::new(), chain: Chain::from([]) }
    }

    /// Moves to a turn; answers how many of its tokens were there before, as prompt or output of the turn before it.
    pub(crate) fn play(&mut self, scenario: &Scenario, hasher: &BlockHasher, turn: usize) -> u64 {
        let prompt = scenario.turn_prompt_tokens[turn] as usize;
        let total = |turn: usize| (scenario.turn_prompt_tokens[turn] + scenario.turn_output_tokens[turn]) as usize;
        let before = std::mem::replace(&mut self.played, total(turn));
        if self.last.is_some_and(|last| turn <= last) {
            return before.min(prompt) as u64;
        }
        let kept =
            if turn == scenario.turns(self.session).start { 0 } else { (scenario.common_blocks(turn - 1, turn) * scenario.block_tokens) as usize };
        let mut last = turn;
        while scenario.extends(self.session, last) {
            last += 1;
        }
        self.last = Some(last);
        self.tokens.truncate(kept);
        self.synthesise(scenario, turn, (turn..=last).map(total).max().unwrap_or(0));
        let block = hasher.block_tokens() as usize;
        self.fingerprints.truncate(kept / block);
        let mut chain = self.chain[..kept / block].to_vec();
        for at in self.fingerprints.len()..self.tokens.len() / block {
            let fingerprint = hasher.fingerprint(&self.tokens[at * block..(at + 1) * block]);
            let before = chain.last().copied().unwrap_or(0);
            self.fingerprints.push(fingerprint);
            chain.push(mix(before ^ fingerprint.rotate_left(17)));
        }
        self.chain = chain.into();
        kept as u64
    }

    fn synthesise(&mut self, scenario: &Scenario, mut turn: usize, total: usize) {
        let block = scenario.block_tokens as usize;
        loop {
            let full = scenario.turn_prompt_tokens[turn] as usize / block;
            let mut at = self.tokens.len() / block;
            let mut first = 0;
            for run in scenario.runs(turn) {
                let (id, blocks) = (scenario.run_first_id[run] as u64, scenario.run_blocks[run] as usize);
                let lap = if scenario.run_shared[run] { 0 } else { self.lap };
                while at < first + blocks && self.tokens.len() < total {
                    let seed = mix(id + (at - first) as u64) ^ mix(lap).wrapping_mul(2);
                    let from = self.tokens.len() % block;
                    let to = block.min(from + total - self.tokens.len());
                    self.tokens.extend((from..to).map(|offset| token(seed, offset)));
                    at = self.tokens.len() / block;
                }
                first += blocks;
            }
            debug_assert!(self.tokens.len() >= (full * block).min(total));
            if self.tokens.len() >= total {
                return;
            }
            if scenario.extends(self.session, turn) {
                turn += 1;
                continue;
            }
            // Nobody will read these tokens again: any that are this turn's own will do.
            let seed = mix(turn as u64 + 1) ^ mix(self.lap + (1 << 32));
            self.tokens.extend((self.tokens.len()..total).map(|offset| token(seed, offset)));
            return;
        }
    }

    /// The prompt of the present turn.
    pub(crate) fn prompt(&self, hasher: &BlockHasher, prompt_tokens: usize) -> Prompt {
        let block = hasher.block_tokens() as usize;
        let full = prompt_tokens / block;
        Prompt::from_parts(hasher.block_tokens(), self.fingerprints[..full].to_vec(), self.tokens[full * block..prompt_tokens].to_vec())
            .expect("a tail is shorter than a block")
    }

    /// All tokens that are laid out.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens after the prompt of the present turn.
    pub(crate) fn output(&self, prompt_tokens: usize) -> &[u32] {
        &self.tokens[prompt_tokens..self.played]
    }

    /// Chain hashes of the full blocks of prompt and output, and perhaps of what comes after them.
    pub(crate) fn chain(&self) -> &Chain {
        &self.chain
    }
}

/// Seeds are mixed; one multiplication tells the places of a block apart.
fn token(seed: u64, offset: usize) -> u32 {
    let spread = seed.wrapping_add(offset as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (((spread >> 32) * VOCABULARY) >> 32) as u32
}

/// A 64-bit finaliser (Stafford's variant 13).
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
