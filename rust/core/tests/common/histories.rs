//! Random histories of a router, and a caller that knows what it may expect.
#![allow(dead_code, reason = "every file of laws uses a part")]

mod checks;
mod events;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use turnout_core::control::limits::Limits;
use turnout_core::error::Error;
use turnout_core::record::recorder::Recorder;
use turnout_core::router::Router;
use turnout_core::router::types::{
    Cause, Completion, Decision, Effect, Hint, Metrics, Reason, ReplicaConfig, RouterConfig, Status, Submit, TurnInput, WeightsMode, WorkloadConfig,
};

use events::By;
pub(crate) use events::{Event, event};

pub(crate) const BLOCK: u32 = 4;
pub(crate) const SESSIONS: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "s5"];
pub(crate) const REPLICAS: [&str; 3] = ["r0", "r1", "r2"];
const GROUPS: [&str; 2] = ["g0", "g1"];
const OWNERS: [&str; 2] = ["o0", "o1"];
const ORDERS: [&str; 3] = ["fifo", "longest_first", "shortest_first"];
const PLACEMENTS: [&str; 6] = ["cost", "round_robin", "least_loaded", "cache_aware", "dynamo", "hash"];
const WORKLOADS: [&str; 2] = ["a", "b"];

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
    /// Outputs that each turn was asked for.
    samples: BTreeMap<Arc<str>, u32>,
    /// Turns that were aborted and may come back.
    aborted: Vec<Arc<str>>,
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
            workloads: vec![
                WorkloadConfig::new(WORKLOADS[0]),
                // Some callers do not say when sessions end, or have only sessions of one turn.
                WorkloadConfig { ends: !seed.is_multiple_of(3), one_turn: seed.is_multiple_of(5), ..WorkloadConfig::new(WORKLOADS[1]) },
            ],
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
            samples: BTreeMap::new(),
            aborted: Vec::new(),
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
        self.samples.entry(decision.turn.clone()).or_insert(1);
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

    /// A replica that is said to have served a turn; the last one is in no fleet. What it then holds, no limit was asked about.
    fn server(&mut self, server: Option<usize>) -> Option<&'static str> {
        self.forced |= server.is_some();
        server.map(|at| *REPLICAS.get(at).unwrap_or(&"gone"))
    }

    fn progress(&mut self, turn: &Arc<str>, tokens: u64, server: Option<&str>) -> Result<(), TestCaseError> {
        let present = server.is_none_or(|name| self.router.replicas().iter().any(|other| &**other == name));
        match self.router.progress(self.now, turn, tokens, server) {
            Ok(_) => {
                prop_assert!(present);
                self.forced |= server.is_some();
                Ok(())
            }
            Err(Error::UnknownReplica { .. }) if !present => Ok(()),
            Err(error) => Err(TestCaseError::fail(format!("{error}"))),
        }
    }

    fn complete(
        &mut self,
        turn: &Arc<str>,
        ids: bool,
        tokens: usize,
        miscount: Option<i8>,
        server: Option<usize>,
        keep: Option<u32>,
    ) -> Result<(), TestCaseError> {
        let samples = self.samples[turn] as usize;
        let (session, mut history) = self.prompts.remove(turn).expect("known");
        let lists: Vec<Vec<u32>> =
            (0..samples as u32).map(|sample| (0..tokens as u32).map(|at| 3_000_000 + self.next as u32 * 100 + sample * 30 + at).collect()).collect();
        let lists: Vec<&[u32]> = lists.iter().map(Vec::as_slice).collect();
        let served_by = self.server(server);
        let completion = Completion {
            output: ids.then_some(&lists[..]),
            output_tokens: Some((samples * tokens) as u64),
            prompt_tokens: miscount.map(|by| (history.len() as u64).saturating_add_signed(i64::from(by)).max(1)),
            served_by,
            keep: keep.filter(|&keep| keep < samples as u32),
            ..Completion::default()
        };
        let wrong = Completion { keep: Some(samples as u32), ..completion };
        prop_assert!(self.router.complete(self.now, turn, &wrong).is_err());
        let held = self.waiting.contains(turn) && !served_by.is_some_and(|name| self.router.replicas().iter().any(|other| &**other == name));
        prop_assert_eq!(self.router.complete(self.now, turn, &completion).expect("never fails").effect, Effect::Done);
        if let Some(kept) = if samples == 1 { Some(0) } else { completion.keep } {
            history.extend(lists[kept as usize]);
        }
        if !held {
            self.histories.insert(session, history);
        }
        self.gone(turn);
        let stats = self.router.stats();
        let again = self.router.complete(self.now, turn, &completion).expect("never fails").effect;
        prop_assert!(matches!(again, Effect::Duplicate | Effect::Late));
        prop_assert_eq!(self.router.stats().completed, stats.completed);
        Ok(())
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
            Event::Submit {
                session,
                workload,
                family,
                shared,
                private,
                max_new,
                hold,
                deadline,
                candidate,
                parent,
                owner,
                at,
                bias,
                samples,
                group,
                expected,
                avoid,
            } => {
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
                    samples: *samples,
                    group: group.map(|at| GROUPS[at]),
                    group_size: group.map(|at| 3 * at as u32).filter(|&size| size > 0),
                    expected_tokens: *expected,
                    avoid: avoid.map_or(&[], |at| std::slice::from_ref(&REPLICAS[at])),
                    ..Submit::new(TurnInput::Prompt(&prompt))
                };
                let decision = self.submit(*session, tokens, &submit)?;
                let waits = decision.as_ref().is_some_and(|decision| decision.status == Status::Held);
                prop_assert!(at.is_none() || !waits, "who chose the replica does not wait");
                if let Some(decision) = &decision {
                    self.samples.insert(decision.turn.clone(), *samples);
                }
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
            Event::Progress { turn, tokens, server } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                self.progress(&turn, *tokens, server.map(|at| REPLICAS[at]))?;
            }
            Event::Complete { turn, ids, tokens, miscount, server, keep } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                self.complete(&turn, *ids, *tokens, *miscount, *server, *keep)?;
            }
            Event::Abort { turn, tokens, cause, retry, server } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                let cause = Cause::NAMES[*cause].1;
                let served_by = self.server(*server);
                let completion = Completion { output_tokens: Some(*tokens as u64), cause, retry: *retry, served_by, ..Completion::default() };
                prop_assert_eq!(self.router.abort(self.now, &turn, &completion).expect("never fails").effect, Effect::Done);
                self.gone(&turn);
                self.aborted.push(turn.clone());
                prop_assert_eq!(self.router.abort(self.now, &turn, &completion).expect("never fails").effect, Effect::Duplicate);
            }
            Event::ComeBack { turn } => {
                if self.aborted.is_empty() {
                    return Ok(());
                }
                let turn = self.aborted.swap_remove(turn % self.aborted.len());
                let (session, tokens) = self.prompts[&turn].clone();
                let prompt = self.router.hasher().prompt(&tokens);
                self.next += 1;
                let attempt = self.next as u32;
                let submit = Submit { turn: Some(&turn), attempt, session: Some(SESSIONS[session]), ..Submit::new(TurnInput::Prompt(&prompt)) };
                self.samples.insert(turn.clone(), 1);
                self.submit(session, tokens, &submit)?;
            }
            Event::Retry { turn } => {
                let Some(turn) = self.pick(*turn) else { return Ok(()) };
                let (session, tokens) = self.prompts[&turn].clone();
                let prompt = self.router.hasher().prompt(&tokens);
                self.gone(&turn);
                self.samples.insert(turn.clone(), 1);
                self.next += 1;
                let attempt = self.next as u32;
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
            Event::Hint { session, idle, expected, priority } => {
                let hint = Hint { idle: idle.map(|millis| millis * 1_000_000), expected_tokens: *expected, priority: *priority };
                let known = self.router.peek_session(SESSIONS[*session]).is_ok();
                let effect = self.router.hint(self.now, SESSIONS[*session], &hint).expect("within bounds").effect;
                // A timer of this very event may have ended it.
                prop_assert!(known || effect == Effect::Unknown);
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
                    order: Some([0, 1].map(|at| ORDERS[usize::from(caps[at]) / 80 % 3].into()).to_vec()),
                    shed: Some(*shed),
                    placement: Some(PLACEMENTS[*placement].into()),
                    placement_args: vec![("sticky".into(), f64::from(u8::from(*sticky)))],
                    replicas: replicas.clone(),
                    workloads: self.router.workloads(),
                    ..Limits::default()
                };
                let step = self.router.view(self.now).step;
                self.router.set_limits(self.now, &limits, step).map_err(|error| TestCaseError::fail(format!("{error}")))?;
                self.reserve = 3.0 * whole(f64::from((*output).max(60))) + whole(f64::from(*growth));
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
