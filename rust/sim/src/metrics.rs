//! What is counted in a simulation.

/// Counters of one workload, or of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Sessions that came to their end.
    pub finished_sessions: u64,
    /// Sessions given up because a turn was rejected or lost.
    pub failed_sessions: u64,
    /// Turns submitted.
    pub submitted_turns: u64,
    /// Turns placed.
    pub placed_turns: u64,
    /// Turns completed.
    pub turns: u64,
    /// Turns rejected, expired or lost.
    pub aborted_turns: u64,
    /// Turns lost with their replica, and sent again.
    pub lost_turns: u64,
    /// Turns that had to wait before they were placed.
    pub waited_turns: u64,
    /// Turns placed without a wait.
    pub at_once: u64,
    /// Turns preempted by their engine.
    pub preemptions: u64,
    /// Prompt tokens of the turns that started.
    pub prompt_tokens: u64,
    /// Prompt tokens that the engines served from cache.
    pub cached_tokens: u64,
    /// Output tokens of completed turns.
    pub output_tokens: u64,
    /// Prompt tokens that an earlier turn of the session had computed and that were computed again.
    pub reprefill_tokens: u64,
    /// Least seconds of GPU that the completed turns take when nothing is computed twice in a session.
    pub least_gpu_s: f64,
    /// Seconds waited by each turn that was held and then placed.
    pub holds_s: Vec<f32>,
    /// When the last session finished, s.
    pub last_finish_s: f64,
}

/// Nearest-rank quantiles p50, p99 and the maximum of `zeros` zeros and the values; zeros when there is nothing.
#[must_use]
pub fn quantiles(zeros: u64, values: &mut [f32]) -> [f64; 3] {
    values.sort_by(f32::total_cmp);
    let at = |share: f64| {
        let rank = (share * (zeros as f64 + values.len() as f64)).ceil() as u64;
        let rank = rank.max(1) - 1;
        rank.checked_sub(zeros).and_then(|rank| values.get(rank as usize)).map_or(0.0, |&value| f64::from(value))
    };
    [at(0.5), at(0.99), at(1.0)]
}

/// A session that came to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finish {
    /// Its place in the list of sessions.
    pub session: usize,
    /// How often the list was played before.
    pub lap: u64,
    /// When its first turn was submitted, s.
    pub started_s: f64,
    /// When its last turn completed, s.
    pub finished_s: f64,
}

/// State of the fleet at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Time, s.
    pub time_s: f64,
    /// Sessions finished so far.
    pub finished_sessions: f64,
    /// Output tokens so far.
    pub output_tokens: f64,
    /// Prompt tokens of turns that started, so far.
    pub prompt_tokens: f64,
    /// Those of them served from cache, so far.
    pub cached_tokens: f64,
    /// Tokens that the ledger charges on the whole fleet.
    pub charge_tokens: f64,
    /// KV tokens that running requests use on the engines.
    pub used_tokens: f64,
    /// Turns held.
    pub held_turns: f64,
    /// Turns placed and not finished.
    pub running_turns: f64,
    /// Preemptions so far.
    pub preemptions: f64,
}

impl Sample {
    /// Every value with its name.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, f64); 10] {
        [
            ("time_s", self.time_s),
            ("finished_sessions", self.finished_sessions),
            ("output_tokens", self.output_tokens),
            ("prompt_tokens", self.prompt_tokens),
            ("cached_tokens", self.cached_tokens),
            ("charge_tokens", self.charge_tokens),
            ("used_tokens", self.used_tokens),
            ("held_turns", self.held_turns),
            ("running_turns", self.running_turns),
            ("preemptions", self.preemptions),
        ]
    }
}
