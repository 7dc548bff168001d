//! What a simulation answers when it is asked.

use turnout_core::error::{Error, Result};
use turnout_core::router::Router;
use turnout_core::units::seconds;

use crate::fleet::Simulation;
use crate::metrics::{Counts, Finish, Sample, quantiles};

impl Simulation {
    /// Simulated time, s.
    #[must_use]
    pub fn now_s(&self) -> f64 {
        seconds(self.now)
    }

    /// How far the run is: time, or finished sessions where their number is given.
    #[must_use]
    pub fn finished_fraction(&self) -> f64 {
        let roots = self.config.scenario.session_parent.iter().filter(|&&parent| parent < 0).count() as u64;
        let total = if self.config.repeat { self.config.sessions } else { Some(self.config.sessions.map_or(roots, |most| most.min(roots))) };
        let by_time = if self.config.duration_s.is_finite() { self.now_s() / self.config.duration_s } else { 0.0 };
        let by_sessions = total.map_or(0.0, |total| (self.started - self.outstanding as u64) as f64 / total.max(1) as f64);
        if self.finished { 1.0 } else { by_time.max(by_sessions).min(1.0) }
    }

    /// The router that decides.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Counters by workload.
    #[must_use]
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// Seconds held (p50, p99, max) of the turns of a workload: 0 for those placed at once, those still held included.
    #[must_use]
    pub fn hold_quantiles(&self, workload: Option<usize>) -> [f64; 3] {
        let chosen = |at: usize| workload.is_none_or(|workload| workload == at);
        let mut holds: Vec<f32> =
            self.counts.iter().enumerate().filter(|&(at, _)| chosen(at)).flat_map(|(_, counts)| counts.holds_s.iter().copied()).collect();
        let held = self.plays.values().filter(|play| play.held && chosen(self.config.scenario.session_workload[play.session] as usize));
        holds.extend(held.map(|play| seconds(self.now - play.submitted_at) as f32));
        let at_once = self.counts.iter().enumerate().filter(|&(at, _)| chosen(at)).map(|(_, counts)| counts.at_once).sum();
        quantiles(at_once, &mut holds)
    }

    /// Turns held and running now, by workload.
    #[must_use]
    pub fn open_turns(&self, workload: usize) -> (u64, u64) {
        let mine =
            self.by_turn.values().map(|id| &self.plays[id]).filter(|play| self.config.scenario.session_workload[play.session] as usize == workload);
        mine.fold((0, 0), |(held, running), play| if play.held { (held + 1, running) } else { (held, running + 1) })
    }

    /// Preemptions on all engines.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        self.engines.iter().map(|engine| engine.preemptions).sum()
    }

    /// Tokens computed again after preemptions, on all engines.
    #[must_use]
    pub fn recomputed_tokens(&self) -> u64 {
        self.engines.iter().map(|engine| engine.recomputed_tokens).sum()
    }

    /// The time series.
    #[must_use]
    pub fn series(&self) -> &[Sample] {
        &self.series
    }

    /// The sessions that finished, in the order in which they did.
    #[must_use]
    pub fn finishes(&self) -> &[Finish] {
        &self.finishes
    }

    /// Whether the run ended because nothing could happen any more.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Whether every submitted turn is accounted for, in the simulation and in the router.
    ///
    /// # Errors
    /// [`Error::Internal`] with the numbers.
    pub fn audit(&self) -> Result<()> {
        self.router.audit()?;
        for (workload, counts) in self.counts.iter().enumerate() {
            let (held, running) = self.open_turns(workload);
            let found = [counts.turns + counts.aborted_turns + counts.lost_turns + held + running, counts.placed_turns + held + counts.aborted_turns];
            if found[0] != counts.submitted_turns || found[1] < counts.submitted_turns {
                let problem = format!("workload {workload}: {} turns submitted, {} accounted for", counts.submitted_turns, found[0]);
                return Err(Error::Internal { problem });
            }
        }
        Ok(())
    }
}
