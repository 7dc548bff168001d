//! The limits event: what a policy computed comes into force.

use super::Router;
use super::types::{Effect, Outcome};
use crate::admission::enforced::{self, Enforced};
use crate::control::limits::Limits;
use crate::error::{Error, Result};
use crate::units::Nanos;

impl Router {
    /// Applies limits computed from the view of `step`.
    ///
    /// # Errors
    /// [`Error::Policy`] when a value cannot be enforced and [`Error::InvalidArgument`] when newer limits are in force; the old ones stay.
    pub fn set_limits(&mut self, now: Nanos, limits: &Limits, step: i64) -> Result<Outcome> {
        if step < self.limits.step || step < 0 {
            let accepted = "the step of a view at least as new as the limits in force";
            return Err(Error::InvalidArgument { argument: "step", value: step.to_string(), accepted });
        }
        let rows: Vec<enforced::Row> = self
            .live()
            .map(|slot| enforced::Row { slot, name: self.replicas[slot as usize].config.name.clone(), blocks: self.replicas[slot as usize].blocks })
            .collect();
        let compiled = enforced::compile(limits, step, &rows, &self.workloads(), self.hasher.block_tokens(), self.replicas.len())?;
        let seq = self.begin(now);
        let mut compiled = compiled;
        // Nobody knows when such a session comes back, or whether: it protects nothing until that is learned.
        for (workload, state) in self.workloads.iter().enumerate() {
            if !state.config.ends && state.estimator.gaps.long().is_none() {
                compiled.replicas.iter_mut().for_each(|row| row.lease[workload] = 0);
            }
        }
        let before = std::mem::replace(&mut self.limits, compiled);
        self.all_changed = true;
        self.renew_leases(&before);
        self.renew_order(&before);
        self.scale_guarantees();
        self.applied_at = self.now;
        for replica in &mut self.replicas {
            replica.lost_blocks = 0;
        }
        self.policy_due = false;
        self.next_control = self.control_period.map(|period| self.now.saturating_add(period));
        for slot in self.live().collect::<Vec<_>>() {
            self.relieve(slot);
        }
        self.pump(None);
        Ok(Outcome { seq, effect: Effect::Done })
    }

    /// Puts the held turns of workloads with another order where they stand now.
    fn renew_order(&mut self, before: &Enforced) {
        for turn in self.line.all() {
            let workload = self.turns[turn].workload as usize;
            if before.workloads[workload].order != self.limits.workloads[workload].order {
                self.line_up(turn);
            }
        }
    }

    /// Guarantees are kept out of the ceilings that there are. Where one shrinks, what it protected may have to go.
    pub(super) fn scale_guarantees(&mut self) {
        self.all_changed = true;
        let room = self.accepting().map(|slot| u128::from(self.limits.replicas[slot as usize].ceiling)).sum();
        if self.limits.scale_guarantees(room) {
            for slot in self.live().collect::<Vec<_>>() {
                self.relieve(slot);
            }
        }
    }
}
