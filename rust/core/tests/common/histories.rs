// Length: one generator of events, and what their caller can check after each.
//! Random histories of a router, and a caller that knows what it may expect.
#![allow(dead_code, reason = "every file of laws uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use turnout_core::control::limits::Limits;
use turnout_core::control::view::Values;
use turnout_core::error::Error;
use turnout_core::record::recorder::Recorder;
use turnout_core::router::Router;
use turnout_core::router::types::{
    Completion, Decision, Effect, Metrics, Reason, ReplicaConfig, RouterConfig, Status, Submit, TurnInput, WeightsMode, WorkloadConfig,
};

pub(crate) const BLOCK: u32 = 4;
pub(crate) const SESSIONS: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "s5"];
pub(crate) const REPLICAS: [&str; 3] = ["r0", "r1", "r2"];
const OWNERS: [&str; 2] = ["o0", "o1"];
const PLACEMENTS: [&str; 6] = ["cost", "round_robin", "least_loaded", "cache_aware", "dynamo", "hash"];
const WORKLOADS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// Whole prompt: a prefix of a family's token stream, then private tokens.
    Submit {
        session: usize,
        workload: usize,
        family: u32,
        shared: usize,
        private: usize,
        max_new: Option<u64>,
        hold: bool,
        deadline: Option<u64>,
        candidate: Option<usize>,
        parent: Option<usize>,
        owner: Option<usize>,
        at: Option<usize>,
        bias: i8,
    },
    /// A turn that nobody reports on.
    Choose {
        session: usize,
        family: u32,
        shared: usize,
    },
    OwnerLost {
        owner: usize,
    },
    Observe {
        replica: usize,
        preemptions: u64,
        tokens: Option<u64>,
    },
    /// Continues with the exact history and some more.
    Continue {
        session: usize,
        more: usize,
        by: By,
    },
    Progress {
        turn: usize,
        tokens: u64,
    },
    Complete {
        turn: usize,
        ids: bool,
        tokens: usize,
    },
    Abort {
        turn: usize,
        tokens: usize,
    },
    Retry {
        turn: usize,
    },
    Repeat {
        turn: usize,
    },
    End {
        session: usize,
        completed: bool,
    },
    Fork {
        session: usize,
        child: usize,
    },
    Lose {
        replica: usize,
    },
    Add {
        replica: usize,
        tokens: u64,
    },
    Weights {
        version: i64,
        mode: usize,
        replica: Option<usize>,
    },
    Limit {
        caps: [u8; 4],
        ceiling: u8,
        growth: u16,
        output: u16,
        lease: u16,
        bypass: u8,
        guarantee: [u8; 2],
        limit: [u8; 2],
        shed: bool,
        placement: usize,
        sticky: bool,
    },
    Drain {
        replica: usize,
    },
    Remove {
        replica: usize,
    },
    Set {
        replica: usize,
        tokens: u64,
    },
    Wait {
        millis: u64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    Prompt,
    Append,
    Count,
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let by = prop_oneof![Just(By::Prompt), Just(By::Append), Just(By::Count)];
    prop_oneof![
        6 => (0..6usize, 0..2usize, 0..3u32, 0..40usize, 0..20usize, proptest::option::of(0..40u64), proptest::bool::weighted(0.9), proptest::option::weighted(0.2, 1..5_000u64), proptest::option::weighted(0.1, 0..3usize), (proptest::option::weighted(0.2, 0..6usize), proptest::option::weighted(0.2, 0..2usize), proptest::option::weighted(0.05, 0..3usize), any::<i8>()))
            .prop_map(|(session, workload, family, shared, private, max_new, hold, deadline, candidate, (parent, owner, at, bias))| Event::Submit { session, workload, family, shared, private, max_new, hold, deadline, candidate, parent, owner, at, bias }),
        1 => (0..6usize, 0..3u32, 1..40usize).prop_map(|(session, family, shared)| Event::Choose { session, family, shared }),
        1 => (0..2usize).prop_map(|owner| Event::OwnerLost { owner }),
        1 => (0..3usize, 0..9u64, proptest::option::weighted(0.3, 40..400u64)).prop_map(|(replica, preemptions, tokens)| Event::Observe { replica, preemptions, tokens }),
        6 => (0..6usize, 1..20usize, by).prop_map(|(session, more, by)| Event::Continue { session, more, by }),
        3 => (any::<usize>(), 0..60u64).prop_map(|(turn, tokens)| Event::Progress { turn, tokens }),
        8 => (any::<usize>(), any::<bool>(), 0..30usize).prop_map(|(turn, ids, tokens)| Event::Complete { turn, ids, tokens }),
        2 => (any::<usize>(), 0..10usize).prop_map(|(turn, tokens)| Event::Abort { turn, tokens }),
        1 => any::<usize>().prop_map(|turn| Event::Retry { turn }),
        1 => any::<usize>().prop_map(|turn| Event::Repeat { turn }),
        2 => (0..6usize, any::<bool>()).prop_map(|(session, completed)| Event::End { session, completed }),
        1 => (0..6usize, 0..6usize).prop_map(|(session, child)| Event::Fork { session, child }),
        1 => (0..3usize).prop_map(|replica| Event::Lose { replica }),
        2 => (0..3usize, 40..400u64).prop_map(|(replica, tokens)| Event::Add { replica, tokens }),
        1 => (0..4i64, 0..3usize, proptest::option::of(0..3usize)).prop_map(|(version, mode, replica)| Event::Weights { version, mode, replica }),
        2 => (any::<[u8; 4]>(), 0..250u8, 0..200u16, 0..60u16, 0..9u16, 0..6u8, any::<[u8; 2]>(), any::<[u8; 2]>(), (any::<bool>(), 0..PLACEMENTS.len(), proptest::bool::weighted(0.8)))
            .prop_map(|(caps, ceiling, growth, output, lease, bypass, guarantee, limit, (shed, placement, sticky))| Event::Limit { caps, ceiling, growth, output, lease, bypass, guarantee, limit, shed, placement, sticky }),
        1 => (0..3usize).prop_map(|replica| Event::Drain { replica }),
        1 => (0..3usize).prop_map(|replica| Event::Remove { replica }),
        1 => (0..3usize, 40..400u64).prop_map(|(replica, tokens)| Event::Set { replica, tokens }),
        3 => (0..4_000u64).prop_map(|millis| Event::Wait { millis }),
    ]
}

/// What a caller knows, independent of the core.
#[allow(clippy::struct_excessive_bools, reason = "each says something else of the limits or of the event")]
pub(crate) struct Caller {
    pub(crate) router: Recorder,
    pub(crate) now: u64,
    next: usize,
    pub(crate) open: Vec<Arc<str>>,
    /// Histories by session, as the caller that sends whole prompts would keep them.
    prompts: BTreeMap<Arc<str>, (usize, Vec<u32>)>,
    histories: BTreeMap<usize, Vec<u32>>,
    /// Turns that wait for a word from the outbox.
    pub(crate) waiting: BTreeSet<Arc<str>>,
    /// The only replica that may serve a turn, where it named one.
    bound: BTreeMap<Arc<str>, &'static str>,
    /// Limits in force by replica, since they were set and the replica has not gone.
    limits: BTreeMap<String, InForce>,
    /// Sessions by replica and workload after the event before.
    sessions: BTreeMap<String, [f64; 2]>,
    /// Whether idle sessions above the caps are shed, and whether idle sessions stay at all.
    shed: bool,
    sticky: bool,
    /// Limits of the workloads on all replicas, and what they had committed after the event before, in tokens.
    workload_limits: [f64; 2],
    committed: [f64; 2],
    /// Most that a turn reserves beside its prompt.
    reserve: f64,
    /// Admissions of the present event, and whether one was forced in it, or continuations joined them.
    admitted: Vec<Decision>,
    forced: bool,
    joined: bool,
    expired: u64,
    lost: u64,
}

/// Limits of one replica as they were set, in sessions, turns and tokens.
#[derive(Debug, Clone, Copy)]
struct InForce {
    session_cap: f64,
    workload_cap: [f64; 2],
    turn_cap: f64,
    ceiling: f64,
    overflow: f64,
}

impl Caller {
    pub(crate) fn new(seed: u64) -> Self {
        let config = RouterConfig {
            replicas: vec![ReplicaConfig::new("r0", 300.0), ReplicaConfig::new("r1", 200.0)],
            workloads: WORKLOADS.iter().map(|name| WorkloadConfig::new(name)).collect(),
            block_tokens: BLOCK,
            seed,
            session_ttl_s: 40.0,
            infer_sessions: seed.is_multiple_of(2),
            turn_ttl_s: 60.0,
            max_held: 8,
            ..RouterConfig::default()
        };
        let router = Recorder::new(Router::new(config).expect("the configuration is good"));
        Self {
            router,
            now: 0,
            next: 0,
            open: Vec::new(),
            prompts: BTreeMap::new(),
            histories: BTreeMap::new(),
            waiting: BTreeSet::new(),
            bound: BTreeMap::new(),
            limits: BTreeMap::new(),
            sessions: BTreeMap::new(),
            shed: false,
            sticky: true,
            workload_limits: [f64::INFINITY; 2],
            committed: [0.0; 2],
            reserve: 0.0,
            admitted: Vec::new(),
            forced: false,
            joined: false,
            expired: 0,
            lost: 0,
        }
    }

    fn submit(&mut self, session: usize, tokens: Vec<u32>, submit: &Submit<'_>) -> Result<Option<Decision>, TestCaseError> {
        let decision = match self.router.submit(self.now, submit) {
            Ok(decision) => decision,
            Err(
                Error::InvalidArgument { argument: "parent" | "at", .. }
                | Error::UnknownReplica { .. }
                | Error::HistoryMismatch { .. }
                | Error::UnknownSession { .. },
            ) => return Ok(None),
            Err(error) => return Err(TestCaseError::fail(format!("{error}"))),
        };
        match decision.status {
            Status::Placed => prop_assert!(decision.replica.is_some()),
            Status::Held => prop_assert!(self.waiting.insert(decision.turn.clone())),
            Status::Rejected => return Ok(Some(decision)),
            status => return Err(TestCaseError::fail(format!("a submit answered {status:?}"))),
        }
        self.note(&decision);
        prop_assert!(decision.cached_tokens < decision.receipt.prompt_tokens);
        self.prompts.insert(decision.turn.clone(), (session, tokens));
        self.open.push(decision.turn.clone());
        Ok(Some(decision))
    }

    fn note(&mut self, decision: &Decision) {
        match decision.reason {
            Reason::Admitted | Reason::Resumed => self.admitted.push(decision.clone()),
            Reason::Forced => self.forced = true,
            Reason::Continuation => self.joined = true,
            _ => {}
        }
    }

    fn pick(&self, turn: usize) -> Option<Arc<str>> {
        (!self.open.is_empty()).then(|| self.open[turn % self.open.len()].clone())
    }

    fn gone(&mut self, turn: &str) {
        self.open.retain(|open| &**open != turn);
        self.waiting.remove(turn);
        self.bound.remove(turn);
    }

    fn ended(&mut self, session: usize) {
        let turns: Vec<Arc<str>> = self.open.iter().filter(|turn| self.prompts[*turn].0 == session).cloned().collect();
        for turn in turns {
            self.gone(&turn);
        }
        self.histories.remove(&session);
    }

    #[allow(clippy::too_many_lines, reason = "one arm per event")]
    pub(crate) fn apply(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Submit { session, workload, family, shared, private, max_new, hold, deadline, candidate, parent, owner, at, bias } => {
                self.next += 1;
                let mut tokens: Vec<u32> = (0..*shared as u32).map(|at| family * 1_000 + at).collect();
                tokens.extend((0..=*private as u32).map(|at| 1_000_000 + self.next as u32 * 100 + at));
                let prompt = self.router.hasher().prompt(&tokens);
                let names = candidate.map(|at| [REPLICAS[at]]);
                let bias = [("r0", f64::from(*bias) / 100.0)];
                let present = self.router.replicas().iter().any(|name| &**name == "r0");
                let submit = Submit {
                    session: Some(SESSIONS[*session]),
                    workload: Some(WORKLOADS[*workload]),
                    max_new_tokens: *max_new,
                    hold: *hold,
                    deadline: deadline.map(|millis| millis * 1_000_000),
                    candidates: names.as_ref().map(|names| &names[..]),
                    parent: parent.map(|at| SESSIONS[at]),
                    owner: owner.map(|at| OWNERS[at]),
                    at: at.map(|at| REPLICAS[at]),
                    bias: if present { &bias } else { &[] },
                    ..Submit::new(TurnInput::Prompt(&prompt))
                };
                let decision = self.submit(*session, tokens, &submit)?;
                let waits = decision.as_ref().is_some_and(|decision| decision.status == Status::Held);
                prop_assert!(at.is_none() || !waits, "who chose the replica does not wait");
                if let (Some(decision), Some(names)) = (decision, names) {
                    self.bound.insert(decision.turn, names[0]);
                }
            }
            Event::Continue { session, more, by } => {
                self.next += 1;
                let Some(history) = self.histories.get(session).cloned() else { return Ok(()) };
                let new: Vec<u32> = (0..*more as u32).map(|at| 2_000_000 + self.next as u32 * 100 + at).collect();
                let tokens = [history.clone(), new.clone()].concat();
                let prompt = self.router.hasher().prompt(&tokens);
                let input = match by {
                    By::Prompt => TurnInput::Prompt(&prompt),
                    By::Append => TurnInput::Append { base_tokens: history.len() as u64, tokens: &new },
                    By::Count => TurnInput::Count { prompt_tokens: tokens.len() as u64 },
                };
                self.submit(*session, tokens, &Submit { session: Some(SESSIONS[*session]), ..Submit::new(input) })?;
            }
            Event::Progress { turn, tokens } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                self.router.progress(self.now, &turn, *tokens).map_err(|error| TestCaseError::fail(format!("{error}")))?;
            }
            Event::Complete { turn, ids, tokens } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                let output: Vec<u32> = (0..*tokens as u32).map(|at| 3_000_000 + self.next as u32 * 100 + at).collect();
                let completion =
                    Completion { output: ids.then_some(&output), output_tokens: Some(*tokens as u64), cached_tokens: None, ..Completion::default() };
                let held = self.waiting.contains(&turn);
                prop_assert_eq!(self.router.complete(self.now, &turn, &completion).expect("never fails").effect, Effect::Done);
                let (session, mut tokens) = self.prompts.remove(&turn).expect("known");
                tokens.extend(&output);
                if !held {
                    self.histories.insert(session, tokens);
                }
                self.gone(&turn);
                let stats = self.router.stats();
                let again = self.router.complete(self.now, &turn, &completion).expect("never fails").effect;
                prop_assert!(matches!(again, Effect::Duplicate | Effect::Late));
                prop_assert_eq!(self.router.stats().completed, stats.completed);
            }
            Event::Abort { turn, tokens } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                let completion = Completion { output_tokens: Some(*tokens as u64), ..Completion::default() };
                prop_assert_eq!(self.router.abort(self.now, &turn, &completion).expect("never fails").effect, Effect::Done);
                self.gone(&turn);
                prop_assert_eq!(self.router.abort(self.now, &turn, &completion).expect("never fails").effect, Effect::Duplicate);
            }
            Event::Retry { turn } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                let (session, tokens) = self.prompts[&turn].clone();
                let prompt = self.router.hasher().prompt(&tokens);
                self.gone(&turn);
                let attempt = 1 + self.next as u32;
                self.next += 1;
                let submit = Submit { turn: Some(&turn), attempt, session: Some(SESSIONS[session]), ..Submit::new(TurnInput::Prompt(&prompt)) };
                self.submit(session, tokens, &submit)?;
            }
            Event::Repeat { turn } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                let (session, tokens) = self.prompts[&turn].clone();
                let prompt = self.router.hasher().prompt(&tokens);
                // Attempt numbers of retried turns are not kept here; a lower one is a conflict and changes nothing.
                let submit = Submit { turn: Some(&turn), session: Some(SESSIONS[session]), ..Submit::new(TurnInput::Prompt(&prompt)) };
                let before = self.router.stats();
                if let Ok(decision) = self.router.submit(self.now, &submit) {
                    prop_assert_eq!(decision.turn, turn);
                    prop_assert_eq!(self.router.stats().submitted, before.submitted);
                }
            }
            Event::End { session, completed } => {
                self.router.end_session(self.now, SESSIONS[*session], *completed).expect("never fails");
                self.ended(*session);
            }
            Event::Fork { session, child } => {
                if self.router.fork(self.now, SESSIONS[*session], SESSIONS[*child]).is_ok()
                    && let Some(history) = self.histories.get(session).cloned()
                {
                    self.histories.insert(*child, history);
                }
            }
            Event::Lose { replica } => {
                if self.router.lose_replica(self.now, REPLICAS[*replica]).is_ok() {
                    self.limits.remove(REPLICAS[*replica]);
                }
            }
            Event::Choose { session, family, shared } => {
                let tokens: Vec<u32> = (0..*shared as u32).map(|at| family * 1_000 + at).collect();
                let prompt = self.router.hasher().prompt(&tokens);
                let before = (self.router.stats(), self.router.charge_tokens());
                let submit = Submit { session: Some(SESSIONS[*session]), ..Submit::new(TurnInput::Prompt(&prompt)) };
                let chosen = self.router.choose(self.now, &submit).map_err(|error| TestCaseError::fail(format!("{error}")))?;
                prop_assert!(chosen.turn.is_empty() && matches!(chosen.status, Status::Placed | Status::Rejected));
                let after = self.router.stats();
                prop_assert_eq!((after.open_turns, after.live_sessions), (before.0.open_turns, before.0.live_sessions), "nothing is tracked");
                prop_assert!(self.router.charge_tokens() <= before.1, "nothing is charged");
            }
            Event::OwnerLost { owner } => {
                drop(self.router.owner_lost(self.now, OWNERS[*owner]));
                for (session, name) in SESSIONS.iter().enumerate() {
                    if self.router.peek_session(name).is_err() {
                        self.ended(session);
                    }
                }
            }
            Event::Observe { replica, preemptions, tokens } => {
                let metrics = Metrics { preemptions_total: Some(*preemptions), kv_tokens: tokens.map(|tokens| tokens as f64), ..Metrics::default() };
                if self.router.observe(self.now, REPLICAS[*replica], &metrics).is_ok() && tokens.is_some() {
                    self.limits.remove(REPLICAS[*replica]);
                }
            }
            Event::Drain { replica } => drop(self.router.drain_replica(self.now, REPLICAS[*replica])),
            Event::Remove { replica } => drop(self.router.remove_replica(self.now, REPLICAS[*replica])),
            Event::Set { replica, tokens } => {
                if self.router.set_replica(self.now, &ReplicaConfig::new(REPLICAS[*replica], *tokens as f64)).is_ok() {
                    // Another capacity has limits of the core's own making until the next step.
                    self.limits.remove(REPLICAS[*replica]);
                }
            }
            Event::Add { replica, tokens } => drop(self.router.add_replica(self.now, &ReplicaConfig::new(REPLICAS[*replica], *tokens as f64))),
            Event::Weights { version, mode, replica } => {
                let mode = [WeightsMode::Flush, WeightsMode::Keep, WeightsMode::Salt][*mode];
                drop(self.router.weights_updated(self.now, *version, mode, replica.map(|at| REPLICAS[at])));
            }
            Event::Limit { caps, ceiling, growth, output, lease, bypass, guarantee, limit, shed, placement, sticky } => {
                let replicas = self.router.replicas();
                let cap = |at: usize| f64::from(caps[at] % 8) + if caps[at] % 8 == 7 { f64::INFINITY } else { 0.0 };
                // Two thirds of them are unlimited, and most guarantee nothing; guarantees are within the limits.
                let workload_limits = limit.map(|limit| if limit % 3 < 2 { f64::INFINITY } else { f64::from(limit) });
                let workload_guarantees =
                    [0, 1].map(|at| if guarantee[at] < 170 { 0.0 } else { f64::from(guarantee[at] % 128).min(workload_limits[at]) });
                let limits = Limits {
                    session_cap: Some(replicas.iter().map(|_| cap(0).max(1.0)).collect()),
                    workload_cap: Some(replicas.iter().flat_map(|_| [cap(1), cap(2)]).collect()),
                    turn_cap: Some(replicas.iter().map(|_| cap(3)).collect()),
                    ceiling_tokens: Some(replicas.iter().map(|_| f64::from(*ceiling)).collect()),
                    overflow_tokens: Some(replicas.iter().map(|_| f64::from(*ceiling) + 40.0).collect()),
                    growth_tokens: Some(vec![f64::from(*growth); 2]),
                    output_tokens: Some(vec![f64::from(*output); 2]),
                    lease_s: Some(vec![f64::from(*lease); replicas.len() * 2]),
                    bypass: Some(f64::from(*bypass)),
                    lookahead: Some(f64::from(caps[0] % 3 + 1)),
                    guarantee_tokens: Some(workload_guarantees.to_vec()),
                    limit_tokens: Some(workload_limits.to_vec()),
                    shed: Some(*shed),
                    placement: Some(PLACEMENTS[*placement].into()),
                    placement_args: vec![("sticky".into(), f64::from(u8::from(*sticky)))],
                    replicas: replicas.clone(),
                    workloads: self.router.workloads(),
                    ..Limits::default()
                };
                let step = self.router.view(self.now).step;
                self.router.set_limits(self.now, &limits, step).map_err(|error| TestCaseError::fail(format!("{error}")))?;
                self.reserve = whole(f64::from(*output)) + whole(f64::from(*growth));
                let in_force = InForce {
                    session_cap: cap(0).max(1.0),
                    workload_cap: [cap(1), cap(2)],
                    turn_cap: cap(3),
                    ceiling: down(f64::from(*ceiling)),
                    overflow: down(f64::from(*ceiling) + 40.0),
                };
                (self.shed, self.sticky) = (*shed, *sticky);
                self.workload_limits = workload_limits.map(down);
                self.limits = replicas.iter().map(|name| (name.to_string(), in_force)).collect();
            }
            Event::Wait { millis } => {
                self.now += millis * 1_000_000;
                drop(self.router.tick(self.now));
            }
        }
        Ok(())
    }

    /// Takes the outbox: every word is about a turn that waits or runs, and comes once.
    pub(crate) fn drain(&mut self) -> Result<Vec<String>, TestCaseError> {
        let mut words = Vec::new();
        for decision in self.router.drain() {
            words.push(format!("{decision:?}"));
            self.note(&decision);
            self.expired += u64::from(decision.status == Status::Expired);
            // Turns of a session that its caller ended are told as lost and counted as aborted.
            self.lost += u64::from(decision.status == Status::Lost && decision.reason != Reason::SessionEnded);
            match decision.status {
                Status::Placed => {
                    prop_assert!(self.waiting.remove(&decision.turn) || !self.open.contains(&decision.turn), "{decision:?} was not waiting");
                }
                Status::Expired | Status::Lost => self.gone(&decision.turn),
                status => return Err(TestCaseError::fail(format!("{status:?} in the outbox"))),
            }
        }
        Ok(words)
    }

    pub(crate) fn check(&mut self) -> Result<(), TestCaseError> {
        self.drain()?;
        self.router.audit().map_err(|error| TestCaseError::fail(format!("{error}")))?;
        let stats = self.router.stats();
        prop_assert_eq!(stats.open_turns as usize, self.open.len(), "turns open in the core and with the caller");
        prop_assert_eq!(stats.held_turns as usize, self.waiting.len(), "turns held in the core and waiting at the caller");
        prop_assert_eq!((stats.expired, stats.lost), (self.expired, self.lost), "every end is told");
        let replicas = self.router.replicas();
        for turn in &self.waiting {
            let bound = self.bound.get(turn);
            prop_assert!(bound.is_none_or(|name| replicas.iter().any(|other| &**other == *name)), "{turn} waits for a replica that is gone");
        }
        self.check_limits()
    }

    /// Admissions leave commit, caps and overflow respected; only continuations, growth and forced turns may exceed them.
    fn check_limits(&mut self) -> Result<(), TestCaseError> {
        let (admitted, forced) = (std::mem::take(&mut self.admitted), std::mem::take(&mut self.forced));
        let joined = std::mem::take(&mut self.joined);
        drop(self.router.rescan(self.now));
        let view = self.router.view(self.now);
        prop_assert!(self.router.drain().is_empty(), "the event before left a turn waiting that fits");
        // Who goes and comes back under its name starts anew.
        self.limits.retain(|name, _| view.replicas.iter().any(|other| **other == **name));
        let column = |name: &str| match &view.column(name).expect("there").values {
            Values::F64(values) => values.clone(),
            Values::I64(values) => values.iter().map(|&value| value as f64).collect(),
            Values::Bool(values) => values.iter().map(|&value| f64::from(u8::from(value))).collect(),
        };
        let (capacity, guaranteed) = (column("kv_tokens"), column("guaranteed_tokens"));
        let (charge, running, idle) = (column("charge_tokens"), column("sessions_running"), column("sessions_idle"));
        let committed = column("committed_tokens");
        for (workload, &now) in committed.iter().enumerate() {
            let before = self.committed[workload];
            // Who holds nothing, or gave it up in this event, may start with a prompt within the limit, whatever it will grow to.
            let alone = admitted.iter().any(|decision| now <= whole(decision.receipt.prompt_tokens as f64) + self.reserve);
            let kept = now <= self.workload_limits[workload].max(before) || alone;
            prop_assert!(admitted.is_empty() || forced || joined || kept, "{now} committed under {:?}", self.workload_limits);
            self.committed[workload] = now;
        }
        let accepting = column("accepting");
        for (row, name) in view.replicas.iter().enumerate() {
            let own = |values: &[f64]| [values[2 * row], values[2 * row + 1]];
            let (running, idle) = (own(&running), own(&idle));
            let sessions = [running[0] + idle[0], running[1] + idle[1]];
            let before = self.sessions.insert(name.to_string(), sessions).unwrap_or_default();
            let here = admitted.iter().filter(|decision| decision.replica.as_deref() == Some(&**name)).count();
            prop_assert!(here == 0 || accepting[row] > 0.0, "{name} admits somebody and accepts nobody");
            let Some(limits) = self.limits.get(&**name) else { continue };
            prop_assert!(self.sticky || idle.iter().sum::<f64>() < 1.0, "nothing idle stays charged where nothing sticks");
            if self.shed {
                prop_assert!(idle.iter().sum::<f64>() < 1.0 || sessions.iter().sum::<f64>() <= limits.session_cap, "{idle:?} idle above {limits:?}");
                for workload in 0..2 {
                    prop_assert!(idle[workload] < 1.0 || sessions[workload] <= limits.workload_cap[workload], "{idle:?} idle above {limits:?}");
                }
            }
            // Those below their guarantee keep it until the replica bursts.
            if charge[row] > limits.overflow && (charge[row] > capacity[row] || guaranteed.iter().sum::<f64>() < 1.0) {
                prop_assert!(idle.iter().sum::<f64>() < 1.0, "above the overflow nothing idle keeps its charge");
            }
            for decision in admitted.iter().filter(|decision| decision.replica.as_deref() == Some(&**name)) {
                let receipt = &decision.receipt;
                let alone = receipt.charge_tokens == 0 && receipt.prompt_tokens as f64 <= limits.ceiling;
                prop_assert!(alone || (receipt.commit_tokens + receipt.need_tokens) as f64 <= limits.ceiling, "{decision:?} against {limits:?}");
                prop_assert!(receipt.charge_tokens as f64 <= limits.overflow, "{decision:?} against {limits:?}");
                // A member of a family is no session more.
                let total = sessions.iter().sum::<f64>();
                prop_assert!(forced || total <= limits.session_cap.max(before.iter().sum()));
                prop_assert!(forced || running.iter().sum::<f64>() <= limits.turn_cap);
            }
            for workload in 0..2 {
                let grown = sessions[workload] > before[workload];
                prop_assert!(forced || !grown || sessions[workload] <= limits.workload_cap[workload], "{sessions:?} against {limits:?}");
            }
        }
        Ok(())
    }
}

/// Tokens of the whole blocks in a number of tokens, and of the blocks that it takes.
fn down(tokens: f64) -> f64 {
    (tokens / f64::from(BLOCK)).floor() * f64::from(BLOCK)
}

fn whole(tokens: f64) -> f64 {
    (tokens / f64::from(BLOCK)).ceil() * f64::from(BLOCK)
}

/// Random histories per law; `PROPTEST_CASES` asks for more.
pub(crate) fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}
