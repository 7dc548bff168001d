//! What must hold after every event, as a caller sees it.

use proptest::prelude::*;
use turnout_core::control::view::Values;
use turnout_core::router::types::{Reason, Status};

use super::{Caller, whole};

impl Caller {
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
