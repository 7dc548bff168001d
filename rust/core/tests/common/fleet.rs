//! A router and the short words in which scenarios are told.
#![allow(dead_code, reason = "every scenario file uses a part")]

use turnout_core::control::limits::Limits;
use turnout_core::control::view::Values;
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, Decision, Reason, ReplicaConfig, RouterConfig, Status, Submit, TurnInput, WorkloadConfig};

pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) struct Fleet {
    pub(crate) router: Router,
    /// Tokens per block.
    pub(crate) block: u32,
    pub(crate) limits: Limits,
}

impl Fleet {
    pub(crate) fn new(block: u32, replicas: &[(&str, f64)], workloads: &[&str]) -> Self {
        let replicas: Vec<ReplicaConfig> =
            replicas.iter().map(|&(name, tokens)| ReplicaConfig { prefill_tokens_per_s: 10_000.0, ..ReplicaConfig::new(name, tokens) }).collect();
        let workloads = workloads.iter().map(|name| WorkloadConfig::new(name)).collect();
        let router =
            Router::new(RouterConfig { replicas, workloads, block_tokens: block, control_period_s: f64::INFINITY, ..RouterConfig::default() })
                .unwrap();
        let limits = Limits { replicas: router.replicas(), workloads: router.workloads(), ..Limits::default() };
        Self { router, block, limits }
    }

    pub(crate) fn limit(&mut self, now: u64, change: impl FnOnce(&mut Limits)) {
        change(&mut self.limits);
        let step = self.router.view(now).step;
        self.router.set_limits(now, &self.limits, step).unwrap();
    }

    /// Distinct tokens: `n` from `first`.
    pub(crate) fn prompt(&self, parts: &[(u32, u32)]) -> turnout_core::prompt::Prompt {
        let tokens: Vec<u32> = parts.iter().flat_map(|&(first, n)| first..first + n).collect();
        self.router.hasher().prompt(&tokens)
    }

    pub(crate) fn submit(&mut self, now: u64, session: &str, workload: &str, parts: &[(u32, u32)]) -> Decision {
        let prompt = self.prompt(parts);
        let submit = Submit { turn: None, session: Some(session), workload: Some(workload), ..Submit::new(TurnInput::Prompt(&prompt)) };
        self.router.submit(now, &submit).unwrap()
    }

    pub(crate) fn complete(&mut self, now: u64, decision: &Decision, output: u32) {
        let tokens: Vec<u32> = (0..output).map(|at| 900_000_000 + decision.seq as u32 * 100_000 + at).collect();
        self.router.complete(now, &decision.turn, &Completion { output: Some(&[&tokens]), ..Completion::default() }).unwrap();
    }

    /// Ends a session and answers who was placed by it; its own open turns, which are told as well, are left out.
    pub(crate) fn end(&mut self, now: u64, session: &str) -> Vec<Decision> {
        self.router.end_session(now, session, true).unwrap();
        let mut told = self.drain();
        told.retain(|decision| decision.reason != Reason::SessionEnded);
        told
    }

    pub(crate) fn drain(&mut self) -> Vec<Decision> {
        self.router.audit().unwrap();
        std::iter::from_fn(|| self.router.drain()).collect()
    }

    pub(crate) fn column(&mut self, now: u64, name: &str) -> Vec<f64> {
        match &self.router.view(now).column(name).unwrap().values {
            Values::F64(values) => values.clone(),
            Values::I64(values) => values.iter().map(|&value| value as f64).collect(),
            Values::Bool(values) => values.iter().map(|&value| f64::from(u8::from(value))).collect(),
        }
    }

    /// Charge and commit of the first replica, in blocks.
    pub(crate) fn books(&mut self, now: u64) -> (f64, f64) {
        let block = f64::from(self.block);
        (self.column(now, "charge_tokens")[0] / block, self.column(now, "commit_tokens")[0] / block)
    }
}

pub(crate) fn held(decision: &Decision, reason: Reason) {
    assert_eq!((decision.status, decision.reason), (Status::Held, reason), "{decision:?}");
}

pub(crate) fn placed(decision: &Decision) {
    assert_eq!(decision.status, Status::Placed, "{decision:?}");
}
