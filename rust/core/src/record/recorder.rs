//! A router with a journal beside it, and with a clock of its own.
//!
//! Every event goes through here. While a journal is kept, each is written down with a digest of its answer; else nothing
//! is done but to pass it on. A router that was restored in another process, whose clock reads otherwise, lives on in the
//! time of its own: readings are shifted on their way in and out.

use std::ops::Deref;

use super::events::{Blocks, CacheChange, End, Event, Request};
use super::journal::{self, digest, elapsed};
use super::redo::request;
use crate::control::limits::Limits;
use crate::control::view::FleetView;
use crate::error::Result;
use crate::index::CacheEvent;
use crate::prompt::Prompt;
use crate::router::Router;
use crate::router::types::{Completion, Decision, Hint, Metrics, Outcome, ReplicaConfig, Submit, TurnInput, WeightsMode};
use crate::units::{MAX_NANOS, Nanos};

/// A router whose events can be written down.
#[derive(Debug)]
pub struct Recorder {
    pub(super) router: Router,
    /// What is added to the caller's clock.
    shift: i64,
    journal: Option<Journal>,
}

#[derive(Debug)]
struct Journal {
    bytes: Vec<u8>,
    /// Time of the last record.
    at: Nanos,
}

/// Questions that change nothing.
impl Deref for Recorder {
    type Target = Router;

    fn deref(&self) -> &Router {
        &self.router
    }
}

/// What the caller keeps of a prompt that was hashed for the journal.
type Hashed = Option<Prompt>;

impl Recorder {
    /// Records nothing yet.
    #[must_use]
    pub fn new(router: Router) -> Self {
        Self { router, shift: 0, journal: None }
    }

    /// Goes on where a snapshot was taken or a journal ends, whichever it is, in a process whose clock reads `now`.
    ///
    /// # Errors
    /// As [`Router::restore`] and [`journal::replay`].
    pub fn restore(record: &[u8], now: Nanos) -> Result<Self> {
        let router = if journal::is_journal(record) { journal::replay(record)?.router } else { Router::restore(record)? };
        Ok(Self::at(router, now))
    }

    /// Goes on with a router whose time is `now` on the caller's clock.
    #[must_use]
    pub fn at(router: Router, now: Nanos) -> Self {
        let shift = elapsed(now.min(MAX_NANOS), router.now());
        Self { router, shift, journal: None }
    }

    /// The router alone.
    #[must_use]
    pub fn into_router(self) -> Router {
        self.router
    }

    /// Starts a journal with the state of now.
    pub fn start_journal(&mut self) {
        self.journal = Some(Journal { bytes: journal::begin(&self.router.snapshot()), at: self.router.now() });
    }

    /// Stops keeping a journal.
    pub fn stop_journal(&mut self) {
        self.journal = None;
    }

    /// Bytes of the journal that were not taken yet; the first ones begin it. Nothing without a journal.
    pub fn take_journal(&mut self) -> Vec<u8> {
        self.journal.as_mut().map(|journal| std::mem::take(&mut journal.bytes)).unwrap_or_default()
    }

    /// The router's time at a reading of the caller's clock.
    fn inside(&self, now: Nanos) -> Nanos {
        u64::try_from((i128::from(now.min(MAX_NANOS)) + i128::from(self.shift)).clamp(0, i128::from(MAX_NANOS))).unwrap_or(MAX_NANOS)
    }

    /// When a tick is due next, on the caller's clock; see [`Router::wake_at`].
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        self.router.wake_at().map(|at| u64::try_from((i128::from(at) - i128::from(self.shift)).max(0)).unwrap_or(Nanos::MAX))
    }

    /// Runs one event; writes it down where a journal is kept, unless it was refused before anything changed.
    fn run<T: super::codec::Record>(&mut self, now: Nanos, event: impl FnOnce() -> Event, call: impl FnOnce(&mut Router) -> Result<T>) -> Result<T> {
        let Some(journal) = &mut self.journal else { return call(&mut self.router) };
        let before = self.router.changes();
        let answer = call(&mut self.router);
        if answer.is_ok() || before != self.router.changes() {
            journal::append(&mut journal.bytes, elapsed(journal.at, now), &event(), digest(&answer));
            journal.at = now;
        }
        answer
    }

    /// New tokens after a history, hashed for the journal: it holds none but those of partial blocks.
    fn hashed_append(&self, submit: &Submit<'_>) -> Hashed {
        let (TurnInput::Append { tokens, .. }, Some(_)) = (submit.input, &self.journal) else { return None };
        let tail = submit.session.and_then(|name| self.router.history_tail(name)).unwrap_or_default();
        // Nothing new is refused as it is.
        (!tokens.is_empty()).then(|| self.router.hasher().continued(tail, tokens))
    }

    fn submit_with(
        &mut self,
        now: Nanos,
        submit: &Submit<'_>,
        make: fn(Request) -> Event,
        call: fn(&mut Router, Nanos, &Submit<'_>) -> Result<Decision>,
    ) -> Result<Decision> {
        let now = self.inside(now);
        let suffix = self.hashed_append(submit);
        let input = match (&suffix, submit.input) {
            (Some(suffix), TurnInput::Append { base_tokens, .. }) => TurnInput::Grown { base_tokens, suffix },
            (_, input) => input,
        };
        let submit = Submit { input, ..*submit };
        // What the history begins with is looked up before the event changes it.
        let request = self.journal.as_ref().map(|_| request(&self.router, &submit));
        self.run(now, || make(request.expect("a journal is kept")), |router| call(router, now, &submit))
    }

    /// See [`Router::submit`].
    ///
    /// # Errors
    /// Those of [`Router::submit`].
    pub fn submit(&mut self, now: Nanos, submit: &Submit<'_>) -> Result<Decision> {
        self.submit_with(now, submit, |request| Event::Submit { request }, Router::submit)
    }

    /// See [`Router::choose`].
    ///
    /// # Errors
    /// Those of [`Router::choose`].
    pub fn choose(&mut self, now: Nanos, submit: &Submit<'_>) -> Result<Decision> {
        self.submit_with(now, submit, |request| Event::Choose { request }, Router::choose)
    }

    /// See [`Router::progress`].
    ///
    /// # Errors
    /// Those of [`Router::progress`].
    pub fn progress(&mut self, now: Nanos, turn: &str, output_tokens: u64, served_by: Option<&str>) -> Result<Outcome> {
        let now = self.inside(now);
        let event = || Event::Progress { turn: turn.into(), output_tokens, served_by: served_by.map(Into::into) };
        self.run(now, event, |router| router.progress(now, turn, output_tokens, served_by))
    }

    /// The outputs of a turn, hashed for the journal where the router would index them.
    fn hashed_output(&self, turn: &str, completion: &Completion<'_>) -> Option<Vec<Prompt>> {
        let (Some(output), Some(_)) = (completion.output, &self.journal) else { return None };
        self.router.prompt_tail(turn).map(|tail| output.iter().map(|ids| self.router.hasher().continued(tail, ids)).collect())
    }

    fn end_with(
        &mut self,
        now: Nanos,
        turn: &str,
        completion: &Completion<'_>,
        make: fn(String, End) -> Event,
        call: fn(&mut Router, Nanos, &str, &Completion<'_>) -> Result<Outcome>,
    ) -> Result<Outcome> {
        let now = self.inside(now);
        if self.journal.is_none() {
            return call(&mut self.router, now, turn, completion);
        }
        let grown = self.hashed_output(turn, completion);
        let output_tokens = completion.output.map(|lists| lists.iter().map(|ids| ids.len() as u64).sum()).or(completion.output_tokens);
        let completion = Completion { output: None, grown: grown.as_deref(), output_tokens, ..*completion };
        let end = || End {
            grown: grown.as_ref().map(|lists| lists.iter().map(|grown| Blocks::of(grown, 0)).collect()),
            output_tokens,
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            served_by: completion.served_by.map(Into::into),
            keep: completion.keep,
            cause: completion.cause,
            retry: completion.retry,
        };
        self.run(now, || make(turn.into(), end()), |router| call(router, now, turn, &completion))
    }

    /// See [`Router::complete`].
    ///
    /// # Errors
    /// Those of [`Router::complete`].
    pub fn complete(&mut self, now: Nanos, turn: &str, completion: &Completion<'_>) -> Result<Outcome> {
        self.end_with(now, turn, completion, |turn, end| Event::Complete { turn, end }, Router::complete)
    }

    /// See [`Router::abort`].
    ///
    /// # Errors
    /// Those of [`Router::abort`].
    pub fn abort(&mut self, now: Nanos, turn: &str, completion: &Completion<'_>) -> Result<Outcome> {
        self.end_with(now, turn, completion, |turn, end| Event::Abort { turn, end }, Router::abort)
    }

    /// See [`Router::fork`].
    ///
    /// # Errors
    /// Those of [`Router::fork`].
    pub fn fork(&mut self, now: Nanos, session: &str, child: &str) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::Fork { session: session.into(), child: child.into() }, |router| router.fork(now, session, child))
    }

    /// See [`Router::hint`].
    ///
    /// # Errors
    /// Those of [`Router::hint`].
    pub fn hint(&mut self, now: Nanos, session: &str, hint: &Hint) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::Hint { session: session.into(), hint: *hint }, |router| router.hint(now, session, hint))
    }

    /// See [`Router::end_session`].
    ///
    /// # Errors
    /// Those of [`Router::end_session`].
    pub fn end_session(&mut self, now: Nanos, session: &str, completed: bool) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::EndSession { session: session.into(), completed }, |router| router.end_session(now, session, completed))
    }

    /// See [`Router::owner_lost`].
    ///
    /// # Errors
    /// None; the type is that of the other events.
    pub fn owner_lost(&mut self, now: Nanos, owner: &str) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::OwnerLost { owner: owner.into() }, |router| Ok(router.owner_lost(now, owner)))
    }

    /// See [`Router::add_replica`].
    ///
    /// # Errors
    /// Those of [`Router::add_replica`].
    pub fn add_replica(&mut self, now: Nanos, replica: &ReplicaConfig) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::AddReplica { replica: replica.clone() }, |router| router.add_replica(now, replica.clone()))
    }

    /// See [`Router::set_replica`].
    ///
    /// # Errors
    /// Those of [`Router::set_replica`].
    pub fn set_replica(&mut self, now: Nanos, replica: &ReplicaConfig) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::SetReplica { replica: replica.clone() }, |router| router.set_replica(now, replica.clone()))
    }

    /// See [`Router::drain_replica`].
    ///
    /// # Errors
    /// Those of [`Router::drain_replica`].
    pub fn drain_replica(&mut self, now: Nanos, replica: &str) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::DrainReplica { replica: replica.into() }, |router| router.drain_replica(now, replica))
    }

    /// See [`Router::remove_replica`].
    ///
    /// # Errors
    /// Those of [`Router::remove_replica`].
    pub fn remove_replica(&mut self, now: Nanos, replica: &str) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::RemoveReplica { replica: replica.into() }, |router| router.remove_replica(now, replica))
    }

    /// See [`Router::lose_replica`].
    ///
    /// # Errors
    /// Those of [`Router::lose_replica`].
    pub fn lose_replica(&mut self, now: Nanos, replica: &str) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::LoseReplica { replica: replica.into() }, |router| router.lose_replica(now, replica))
    }

    /// See [`Router::weights_updated`].
    ///
    /// # Errors
    /// Those of [`Router::weights_updated`].
    pub fn weights_updated(&mut self, now: Nanos, version: i64, mode: WeightsMode, replica: Option<&str>) -> Result<Outcome> {
        let now = self.inside(now);
        let event = || Event::WeightsUpdated { version, mode, replica: replica.map(Into::into) };
        self.run(now, event, |router| router.weights_updated(now, version, mode, replica))
    }

    /// See [`Router::observe`].
    ///
    /// # Errors
    /// Those of [`Router::observe`].
    pub fn observe(&mut self, now: Nanos, replica: &str, metrics: &Metrics) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::Observe { replica: replica.into(), metrics: *metrics }, |router| router.observe(now, replica, metrics))
    }

    /// See [`Router::cache_events`].
    ///
    /// # Errors
    /// Those of [`Router::cache_events`].
    pub fn cache_events(&mut self, now: Nanos, replica: &str, rank: i64, sequence: u64, events: &[CacheEvent<'_>]) -> Result<Outcome> {
        let now = self.inside(now);
        let event = || Event::CacheEvents { replica: replica.into(), rank, sequence, events: events.iter().map(CacheChange::of).collect() };
        self.run(now, event, |router| router.cache_events(now, replica, rank, sequence, events))
    }

    /// See [`Router::reset_feed`].
    ///
    /// # Errors
    /// Those of [`Router::reset_feed`].
    pub fn reset_feed(&mut self, now: Nanos, replica: &str, rank: i64, next: u64) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::ResetFeed { replica: replica.into(), rank, next }, |router| router.reset_feed(now, replica, rank, next))
    }

    /// See [`Router::end_feeds`].
    ///
    /// # Errors
    /// Those of [`Router::end_feeds`].
    pub fn end_feeds(&mut self, now: Nanos, replica: &str) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::EndFeeds { replica: replica.into() }, |router| router.end_feeds(now, replica))
    }

    /// See [`Router::set_limits`].
    ///
    /// # Errors
    /// Those of [`Router::set_limits`].
    pub fn set_limits(&mut self, now: Nanos, limits: &Limits, step: i64) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::SetLimits { limits: Box::new(limits.clone()), step }, |router| router.set_limits(now, limits, step))
    }

    /// See [`Router::tick`].
    ///
    /// # Errors
    /// None; the type is that of the other events.
    pub fn tick(&mut self, now: Nanos) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::Tick {}, |router| Ok(router.tick(now)))
    }

    /// See [`Router::rescan`].
    ///
    /// # Errors
    /// None; the type is that of the other events.
    pub fn rescan(&mut self, now: Nanos) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::Rescan {}, |router| Ok(router.rescan(now)))
    }

    /// See [`Router::expect_callers`].
    ///
    /// # Errors
    /// None; the type is that of the other events.
    pub fn expect_callers(&mut self, now: Nanos, after: Nanos) -> Result<Outcome> {
        let now = self.inside(now);
        self.run(now, || Event::ExpectCallers { after }, |router| Ok(router.expect_callers(now, after)))
    }

    /// See [`Router::view`]. Its time is that of the caller's clock.
    pub fn view(&mut self, now: Nanos) -> FleetView {
        let inside = self.inside(now);
        let view = self.router.view(inside);
        if let Some(journal) = &mut self.journal {
            // The step stands for the view: all else in it follows from the state.
            journal::append(&mut journal.bytes, elapsed(journal.at, inside), &Event::View {}, digest(&Ok(view.step)));
            journal.at = inside;
        }
        FleetView { now_s: view.now_s - self.shift as f64 / 1e9, ..view }
    }

    /// See [`Router::drain`]: everything that the outbox holds.
    pub fn drain(&mut self) -> Vec<Decision> {
        let mut told = Vec::new();
        if self.router.has_words() {
            let now = self.router.now();
            let words = self.run(now, || Event::Drain {}, |router| Ok(std::iter::from_fn(|| router.drain()).collect::<Vec<_>>()));
            told = words.unwrap_or_default();
        }
        told
    }
}
