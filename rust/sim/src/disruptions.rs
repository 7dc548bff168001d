//! What goes wrong or changes on the way: replicas that go and come back, new weights, cache events that travel.

use turnout_core::error::Result;
use turnout_core::router::types::{Decision, WeightsMode};
use turnout_core::units::nanos;

use crate::feed::Publisher;
use crate::fleet::{Happening, Simulation, counts_of};

impl Simulation {
    /// A replica dies with all it runs and caches. Two outages may overlap: then it is away already.
    pub(crate) fn leave(&mut self, engine: usize) -> Result<()> {
        if std::mem::replace(&mut self.away[engine], true) {
            return Ok(());
        }
        self.engines[engine].restart();
        if let Some(publisher) = self.publishers.get_mut(engine) {
            *publisher = Publisher::default();
        }
        self.router.lose_replica(self.now, &self.config.router.replicas[engine].name)?;
        Ok(())
    }

    /// It is there again, empty.
    pub(crate) fn come_back(&mut self, engine: usize) -> Result<()> {
        self.away[engine] = false;
        self.router.add_replica(self.now, self.config.router.replicas[engine].clone())?;
        Ok(())
    }

    /// A turn went with its replica: its client sends it again at once.
    pub(crate) fn lost(&mut self, decision: &Decision) {
        let Some(id) = self.by_turn.remove(&decision.turn) else { return };
        let play = self.plays.get_mut(&id).expect("its session is played");
        play.lost += 1;
        let session = play.session;
        counts_of(&mut self.counts, &self.config.scenario, session).lost_turns += 1;
        self.schedule(self.now, Happening::Submit(id));
    }

    /// Sends what an engine says of its cache on its way.
    pub(crate) fn publish(&mut self, engine: usize) -> Result<()> {
        let Some(feed) = self.config.feed else { return Ok(()) };
        let told = self.engines[engine].published();
        if self.away[engine] {
            return Ok(());
        }
        let tokens = |chain: usize| self.plays[&self.by_chain[&chain]].path.tokens();
        let at = self.now + nanos(feed.lag_s);
        if !self.publishers[engine].publish(at, told, self.hasher.block_tokens() as usize, tokens) {
            return Ok(());
        }
        if feed.lag_s > 0.0 {
            self.schedule(at, Happening::Arrive(engine));
            return Ok(());
        }
        self.deliver(engine)
    }

    pub(crate) fn deliver(&mut self, engine: usize) -> Result<()> {
        let (Some(feed), Some(publisher)) = (self.config.feed, self.publishers.get_mut(engine)) else { return Ok(()) };
        let name = &self.config.router.replicas[engine].name;
        // Those of a process that died are not waited for.
        publisher.deliver(self.now, &mut self.router, name, self.hasher.block_tokens(), feed.loss)
    }

    /// New weights on the whole fleet when enough sessions have finished.
    pub(crate) fn update_weights(&mut self) -> Result<()> {
        let Some(every) = self.config.flush_every_sessions else { return Ok(()) };
        let finished: u64 = self.counts.iter().map(|counts| counts.finished_sessions).sum();
        let (version, before) = self.weights;
        if finished < before + every {
            return Ok(());
        }
        self.weights = (version + 1, finished);
        for engine in &mut self.engines {
            engine.flush();
        }
        for engine in 0..self.engines.len() {
            self.publish(engine)?;
        }
        self.router.weights_updated(self.now, version + 1, WeightsMode::Flush, None)?;
        Ok(())
    }
}
