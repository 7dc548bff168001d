//! Laws of the router under random events: nothing is lost, charges equal recomputation, repetition changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use turnout_core::control::limits::Limits;
use turnout_core::control::view::Values;
use turnout_core::error::Error;
use turnout_core::router::Router;
use turnout_core::router::types::{
    Completion, Decision, Effect, Reason, ReplicaConfig, RouterConfig, Status, Submit, TurnInput, WeightsMode, WorkloadConfig,
};

const BLOCK: u32 = 4;
const SESSIONS: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "s5"];
const REPLICAS: [&str; 3] = ["r0", "r1", "r2"];
const WORKLOADS: [&str; 2] = ["a", "b"];
const PLACEMENTS: [&str; 6] = ["cost", "round_robin", "least_loaded", "cache_aware", "dynamo", "hash"];

#[derive(Debug, Clone)]
enum Event {
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
        rules: (bool, usize, bool),
    },
    Wait {
        millis: u64,
    },
}

#[derive(Debug, Clone, Copy)]
enum By {
    Prompt,
    Append,
    Count,
}

fn event() -> impl Strategy<Value = Event> {
    let by = prop_oneof![Just(By::Prompt), Just(By::Append), Just(By::Count)];
    prop_oneof![
        6 => (0..6usize, 0..2usize, 0..3u32, 0..40usize, 0..20usize, proptest::option::of(0..40u64), proptest::bool::weighted(0.9), proptest::option::weighted(0.2, 1..5_000u64), proptest::option::weighted(0.1, 0..3usize))
            .prop_map(|(session, workload, family, shared, private, max_new, hold, deadline, candidate)| Event::Submit { session, workload, family, shared, private, max_new, hold, deadline, candidate }),
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
        2 => (any::<[u8; 4]>(), 0..250u8, 0..200u16, 0..60u16, 0..9u16, 0..6u8, (any::<bool>(), 0..PLACEMENTS.len(), proptest::bool::weighted(0.8)))
            .prop_map(|(caps, ceiling, growth, output, lease, bypass, rules)| Event::Limit { caps, ceiling, growth, output, lease, bypass, rules }),
        3 => (0..4_000u64).prop_map(|millis| Event::Wait { millis }),
    ]
}

/// What a caller knows, independent of the core.
struct Caller {
    router: Router,
    now: u64,
    next: usize,
    open: Vec<Arc<str>>,
    /// Histories by session, as the caller that sends whole prompts would keep them.
    prompts: BTreeMap<Arc<str>, (usize, Vec<u32>)>,
    histories: BTreeMap<usize, Vec<u32>>,
    /// Turns that wait for a word from the outbox.
    waiting: BTreeSet<Arc<str>>,
    /// The only replica that may serve a turn, where it named one.
    bound: BTreeMap<Arc<str>, &'static str>,
    /// Limits in force by replica, since they were set and the replica has not gone.
    limits: BTreeMap<String, InForce>,
    /// Whether idle sessions above the caps are shed, and whether idle sessions stay at all.
    shed: bool,
    sticky: bool,
    /// Sessions by replica and workload after the event before.
    sessions: BTreeMap<String, [f64; 2]>,
    /// Admissions of the present event, and whether one was forced in it.
    admitted: Vec<Decision>,
    forced: bool,
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
    fn new(seed: u64) -> Self {
        let config = RouterConfig {
            replicas: vec![ReplicaConfig::new("r0", 300.0), ReplicaConfig::new("r1", 200.0)],
            workloads: WORKLOADS.iter().map(|name| WorkloadConfig::new(name)).collect(),
            block_tokens: BLOCK,
            seed,
            session_ttl_s: 40.0,
            turn_ttl_s: 60.0,
            max_held: 8,
            ..RouterConfig::default()
        };
        let router = Router::new(config).expect("the configuration is good");
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
            shed: false,
            sticky: true,
            sessions: BTreeMap::new(),
            admitted: Vec::new(),
            forced: false,
            expired: 0,
            lost: 0,
        }
    }

    fn submit(&mut self, session: usize, tokens: Vec<u32>, submit: &Submit<'_>) -> Result<Option<Decision>, TestCaseError> {
        let decision = match self.router.submit(self.now, submit) {
            Ok(decision) => decision,
            Err(Error::UnknownReplica { .. } | Error::HistoryMismatch { .. } | Error::UnknownSession { .. }) => return Ok(None),
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

    #[allow(clippy::too_many_lines, reason = "one arm per event")]
    fn apply(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Submit { session, workload, family, shared, private, max_new, hold, deadline, candidate } => {
                self.next += 1;
                let mut tokens: Vec<u32> = (0..*shared as u32).map(|at| family * 1_000 + at).collect();
                tokens.extend((0..=*private as u32).map(|at| 1_000_000 + self.next as u32 * 100 + at));
                let prompt = self.router.hasher().prompt(&tokens);
                let names = candidate.map(|at| [REPLICAS[at]]);
                let submit = Submit {
                    session: Some(SESSIONS[*session]),
                    workload: Some(WORKLOADS[*workload]),
                    max_new_tokens: *max_new,
                    hold: *hold,
                    deadline: deadline.map(|millis| millis * 1_000_000),
                    candidates: names.as_ref().map(|names| &names[..]),
                    ..Submit::new(TurnInput::Prompt(&prompt))
                };
                if let (Some(decision), Some(names)) = (self.submit(*session, tokens, &submit)?, names) {
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
                let completion = Completion { output: ids.then_some(&output), output_tokens: Some(*tokens as u64), cached_tokens: None };
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
                let ended: Vec<Arc<str>> = self.open.iter().filter(|turn| self.prompts[*turn].0 == *session).cloned().collect();
                for turn in ended {
                    self.gone(&turn);
                }
                self.histories.remove(session);
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
            Event::Add { replica, tokens } => drop(self.router.add_replica(self.now, ReplicaConfig::new(REPLICAS[*replica], *tokens as f64))),
            Event::Weights { version, mode, replica } => {
                let mode = [WeightsMode::Flush, WeightsMode::Keep, WeightsMode::Salt][*mode];
                drop(self.router.weights_updated(self.now, *version, mode, replica.map(|at| REPLICAS[at])));
            }
            Event::Limit { caps, ceiling, growth, output, lease, bypass, rules: (shed, placement, sticky) } => {
                let replicas = self.router.replicas();
                let cap = |at: usize| f64::from(caps[at] % 8) + if caps[at] % 8 == 7 { f64::INFINITY } else { 0.0 };
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
                    shed: Some(*shed),
                    placement: Some(PLACEMENTS[*placement].into()),
                    placement_args: vec![("sticky".into(), f64::from(u8::from(*sticky)))],
                    replicas: replicas.clone(),
                    workloads: self.router.workloads(),
                    ..Limits::default()
                };
                let step = self.router.view(self.now).step;
                self.router.set_limits(self.now, &limits, step).map_err(|error| TestCaseError::fail(format!("{error}")))?;
                let whole = |tokens: f64| (tokens / f64::from(BLOCK)).floor() * f64::from(BLOCK);
                let in_force = InForce {
                    session_cap: cap(0).max(1.0),
                    workload_cap: [cap(1), cap(2)],
                    turn_cap: cap(3),
                    ceiling: whole(f64::from(*ceiling)),
                    overflow: whole(f64::from(*ceiling) + 40.0),
                };
                (self.shed, self.sticky) = (*shed, *sticky);
                self.limits = replicas.iter().map(|name| (name.to_string(), in_force)).collect();
            }
            Event::Wait { millis } => {
                self.now += millis * 1_000_000;
                self.router.tick(self.now);
            }
        }
        Ok(())
    }

    /// Takes the outbox: every word is about a turn that waits or runs, and comes once.
    fn drain(&mut self) -> Result<Vec<String>, TestCaseError> {
        let mut words = Vec::new();
        while let Some(decision) = self.router.drain() {
            words.push(format!("{decision:?}"));
            self.note(&decision);
            self.expired += u64::from(decision.status == Status::Expired);
            self.lost += u64::from(decision.status == Status::Lost);
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

    fn check(&mut self) -> Result<(), TestCaseError> {
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
        let view = self.router.view(self.now);
        prop_assert!(self.router.drain().is_none(), "the event before left a turn waiting that fits");
        let column = |name: &str| match &view.column(name).expect("there").values {
            Values::F64(values) => values.clone(),
            Values::I64(values) => values.iter().map(|&value| value as f64).collect(),
            Values::Bool(_) => unreachable!("no flag is read"),
        };
        let (charge, running, idle) = (column("charge_tokens"), column("sessions_running"), column("sessions_idle"));
        for (row, name) in view.replicas.iter().enumerate() {
            let own = |values: &[f64]| [values[2 * row], values[2 * row + 1]];
            let (running, idle) = (own(&running), own(&idle));
            let sessions = [running[0] + idle[0], running[1] + idle[1]];
            let before = self.sessions.insert(name.to_string(), sessions).unwrap_or_default();
            let Some(limits) = self.limits.get(&**name) else { continue };
            prop_assert!(charge[row] <= limits.overflow || idle.iter().sum::<f64>() < 1.0, "above the overflow nothing idle keeps its charge");
            prop_assert!(self.sticky || idle.iter().sum::<f64>() < 1.0, "nothing idle stays charged where nothing sticks");
            let crowded = sessions.iter().sum::<f64>() > limits.session_cap;
            let above = (0..2).any(|at| idle[at] > 0.0 && (crowded || sessions[at] > limits.workload_cap[at]));
            prop_assert!(!self.shed || !above, "{idle:?} of {sessions:?} idle above {limits:?}");
            for decision in admitted.iter().filter(|decision| decision.replica.as_deref() == Some(&**name)) {
                let receipt = &decision.receipt;
                let alone = receipt.charge_tokens == 0 && receipt.prompt_tokens as f64 <= limits.ceiling;
                prop_assert!(alone || (receipt.commit_tokens + receipt.need_tokens) as f64 <= limits.ceiling, "{decision:?} against {limits:?}");
                prop_assert!(receipt.charge_tokens as f64 <= limits.overflow, "{decision:?} against {limits:?}");
                prop_assert!(forced || sessions.iter().sum::<f64>() <= limits.session_cap);
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

/// Random histories per law; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn books_balance_after_every_event(events in proptest::collection::vec(event(), 1..80), seed in any::<u64>()) {
        let mut caller = Caller::new(seed);
        for event in &events {
            caller.apply(event)?;
            caller.check()?;
        }
        for session in SESSIONS {
            caller.router.end_session(caller.now, session, true).expect("never fails");
        }
        caller.open.clear();
        caller.waiting.clear();
        caller.check()?;
        let view = caller.router.view(caller.now);
        for name in ["charge_tokens", "commit_tokens"] {
            let turnout_core::control::view::Values::F64(values) = &view.column(name).expect("there").values else { panic!("real") };
            prop_assert!(values.iter().all(|&tokens| tokens == 0.0), "{name} after the end: {values:?}");
        }
        for name in REPLICAS {
            drop(caller.router.lose_replica(caller.now, name));
        }
        prop_assert_eq!(caller.router.stats().index_blocks, 0, "with nobody left, the index is empty");
        prop_assert_eq!(caller.router.stats().index_runs, 0);
        prop_assert!(caller.router.stats().index_bytes <= 64 * REPLICAS.len() as u64, "the memory goes back, but for a fixed part per replica");
    }

    #[test]
    fn same_events_same_decisions(events in proptest::collection::vec(event(), 1..60), seed in any::<u64>()) {
        let (mut one, mut two) = (Caller::new(seed), Caller::new(seed));
        for event in &events {
            one.apply(event)?;
            two.apply(event)?;
            prop_assert_eq!(one.router.stats(), two.router.stats());
            prop_assert_eq!(one.router.wake_at(), two.router.wake_at());
            prop_assert_eq!(format!("{:?}", one.router.view(one.now)), format!("{:?}", two.router.view(two.now)));
            prop_assert_eq!(one.drain()?, two.drain()?);
        }
    }
}
