//! A fleet of model engines behind the real router, in a closed loop of sessions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use turnout_core::control::limits::Limits;
use turnout_core::control::view::FleetView;
use turnout_core::error::Result;
use turnout_core::prompt::BlockHasher;
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, Decision, Status, Submit, TurnInput};
use turnout_core::units::{Nanos, nanos, seconds};

use crate::config::SimulationConfig;
use crate::engine::{Engine, Event, Request};
use crate::feed::Publisher;
use crate::hash::Mixed;
use crate::metrics::{Counts, Finish, Sample};
use crate::scenario::{Path, Scenario};

/// Control steps in a row without any other event after which a run counts as stuck.
const STUCK_STEPS: u32 = 2_000;

/// A session being played.
#[derive(Debug)]
pub(crate) struct Play {
    name: Arc<str>,
    /// Name of the present turn.
    turn_name: Arc<str>,
    pub(crate) session: usize,
    lap: u64,
    root: bool,
    turn: usize,
    pub(crate) path: Path,
    /// When its first turn is submitted.
    started_at: Nanos,
    pub(crate) submitted_at: Nanos,
    pub(crate) held: bool,
    /// Tokens of the present prompt that the turn before left in some cache.
    reusable_tokens: u64,
    /// Tokens with KV at the end of the turn before.
    computed_tokens: u64,
    /// How often the present turn was lost with its replica.
    pub(crate) lost: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    Submit(u64),
    /// An engine's plan ends, if this is still its plan.
    Engine(usize),
    /// A replica dies.
    Leave(usize),
    /// It is there again.
    Return(usize),
    /// Cache events of an engine arrive.
    Arrive(usize),
}

/// The simulation.
#[derive(Debug)]
pub struct Simulation {
    pub(crate) config: SimulationConfig,
    pub(crate) router: Router,
    pub(crate) hasher: BlockHasher,
    pub(crate) engines: Vec<Engine>,
    pub(crate) names: HashMap<Arc<str>, usize>,
    pub(crate) plays: HashMap<u64, Play, Mixed>,
    pub(crate) by_turn: HashMap<Arc<str>, u64, Mixed>,
    pub(crate) heap: BinaryHeap<Reverse<(Nanos, u64, Happening)>>,
    pub(crate) order: u64,
    pub(crate) next_play: u64,
    /// Next root session to start, and how many were started.
    pub(crate) next_session: usize,
    pub(crate) lap: u64,
    pub(crate) started: u64,
    pub(crate) outstanding: usize,
    pub(crate) children: HashMap<usize, Vec<usize>>,
    pub(crate) counts: Vec<Counts>,
    pub(crate) finishes: Vec<Finish>,
    pub(crate) series: Vec<Sample>,
    pub(crate) next_sample: Nanos,
    pub(crate) now: Nanos,
    pub(crate) idle_steps: u32,
    pub(crate) stuck: bool,
    pub(crate) finished: bool,
    pub(crate) events: Vec<Event>,
    pub(crate) publishers: Vec<Publisher>,
    /// By replica: whether it is gone now.
    pub(crate) away: Vec<bool>,
    /// Plays by the address of the chain that their turns were sent with, while somebody listens to cache events.
    pub(crate) by_chain: HashMap<usize, u64>,
    /// Version of the weights, and finished sessions when they came.
    pub(crate) weights: (i64, u64),
}

impl Simulation {
    /// Makes a simulation at time 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a configuration that cannot be played.
    pub fn new(config: SimulationConfig) -> Result<Self> {
        config.check()?;
        let router = Router::new(config.router.clone())?;
        config.scenario.check(router.workloads().len())?;
        let block = u64::from(config.router.block_tokens);
        let engines = config.router.replicas.iter().map(|replica| Engine::new(config.engine, replica.kv_tokens as u64, block)).collect();
        let names = config.router.replicas.iter().enumerate().map(|(at, replica)| (replica.name.clone(), at)).collect();
        let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
        for (session, &parent) in config.scenario.session_parent.iter().enumerate().filter(|(_, parent)| **parent >= 0) {
            children.entry(parent as usize).or_default().push(session);
        }
        let mut simulation = Self {
            hasher: router.hasher().clone(),
            counts: vec![Counts::default(); router.workloads().len()],
            router,
            engines,
            names,
            plays: HashMap::default(),
            by_turn: HashMap::default(),
            heap: BinaryHeap::new(),
            order: 0,
            next_play: 0,
            next_session: 0,
            lap: 0,
            started: 0,
            outstanding: 0,
            children,
            finishes: Vec::new(),
            series: Vec::new(),
            next_sample: 0,
            now: 0,
            idle_steps: 0,
            stuck: false,
            finished: false,
            events: Vec::new(),
            publishers: Vec::new(),
            away: vec![false; config.router.replicas.len()],
            by_chain: HashMap::new(),
            weights: (0, 0),
            config,
        };
        if simulation.config.feed.is_some() {
            simulation.engines.iter_mut().for_each(Engine::publish);
            simulation.publishers.resize_with(simulation.engines.len(), Publisher::default);
        }
        // Before the sessions, so that a replica that joins later is away before anybody is placed.
        for outage in simulation.config.outages.clone() {
            simulation.schedule(nanos(outage.at_s), Happening::Leave(outage.replica));
            if outage.away_s.is_finite() {
                simulation.schedule(nanos(outage.at_s + outage.away_s), Happening::Return(outage.replica));
            }
        }
        simulation.start_sessions();
        Ok(simulation)
    }

    /// Plays on to the next control step (`true`) or to the end (`false`).
    ///
    /// # Errors
    /// Errors of the router, which a simulation never causes: a defect.
    pub fn advance(&mut self) -> Result<bool> {
        let end = nanos(self.config.duration_s);
        while !self.finished {
            self.sample();
            if self.router.policy_due() {
                self.idle_steps += 1;
                // Nothing but control steps happens any more: whoever is held will be held for ever.
                self.stuck = self.idle_steps > STUCK_STEPS && self.heap.is_empty();
                if !self.stuck {
                    return Ok(true);
                }
            }
            if self.stuck || self.outstanding == 0 && self.plays.is_empty() {
                self.finished = true;
                break;
            }
            let next = self.heap.peek().map(|Reverse((at, _, _))| *at);
            let wake = self.router.wake_at().map(|at| at.max(self.now));
            // While no turn is open there is nothing to limit: the policy is asked again just before the next event.
            let awaited = if self.by_turn.is_empty() { next.or(wake) } else { next.into_iter().chain(wake).min() };
            let Some(at) = awaited else {
                self.stuck = true;
                continue;
            };
            if at > end {
                self.now = end;
                self.finished = true;
                break;
            }
            self.now = at;
            if next == Some(at) && wake.is_none_or(|wake| wake >= at) {
                let Some(Reverse((_, _, happening))) = self.heap.pop() else { continue };
                self.idle_steps = 0;
                self.happen(happening)?;
            } else {
                self.router.tick(at);
            }
            self.drain();
        }
        Ok(false)
    }

    fn happen(&mut self, happening: Happening) -> Result<()> {
        match happening {
            Happening::Submit(play) => self.submit(play),
            Happening::Engine(engine) if self.engines[engine].due() == Some(self.now) => self.engine(engine),
            Happening::Engine(_) => Ok(()),
            Happening::Leave(engine) => self.leave(engine),
            Happening::Arrive(engine) => self.deliver(engine),
            Happening::Return(engine) => self.come_back(engine),
        }
    }

    pub(crate) fn schedule(&mut self, at: Nanos, happening: Happening) {
        self.order += 1;
        self.heap.push(Reverse((at, self.order, happening)));
    }

    fn start_sessions(&mut self) {
        let scenario = self.config.scenario.clone();
        while self.outstanding < self.config.concurrency && self.config.sessions.is_none_or(|most| self.started < most) {
            while self.next_session < scenario.session_parent.len() && scenario.session_parent[self.next_session] >= 0 {
                self.next_session += 1;
            }
            if self.next_session == scenario.session_parent.len() {
                if !self.config.repeat {
                    return;
                }
                self.next_session = 0;
                self.lap += 1;
                continue;
            }
            self.start(self.next_session, self.lap, true);
            self.next_session += 1;
            self.started += 1;
            self.outstanding += 1;
        }
    }

    fn start(&mut self, session: usize, lap: u64, root: bool) {
        let id = self.next_play;
        self.next_play += 1;
        let name: Arc<str> = if lap == 0 { format!("s{session}") } else { format!("s{session}.{lap}") }.into();
        let turn = self.config.scenario.turns(session).start;
        let path = Path::new(session, lap);
        let turn_name = name.clone();
        let at = self.now + nanos(self.config.scenario.turn_gap_s[turn]);
        self.plays.insert(
            id,
            Play {
                name,
                turn_name,
                session,
                lap,
                root,
                turn,
                path,
                started_at: at,
                submitted_at: 0,
                held: false,
                reusable_tokens: 0,
                computed_tokens: 0,
                lost: 0,
            },
        );
        self.schedule(at, Happening::Submit(id));
    }

    fn submit(&mut self, id: u64) -> Result<()> {
        let scenario = self.config.scenario.clone();
        let play = self.plays.get_mut(&id).expect("a scheduled session is played");
        let kept = play.path.play(&scenario, &self.hasher, play.turn);
        play.reusable_tokens = kept.min(play.computed_tokens);
        play.submitted_at = self.now;
        let prompt_tokens = scenario.turn_prompt_tokens[play.turn] as usize;
        let prompt = play.path.prompt(&self.hasher, prompt_tokens);
        let number = play.turn - scenario.turns(play.session).start;
        let turn: Arc<str> = if play.lost == 0 { format!("{}/{number}", play.name) } else { format!("{}/{number}.{}", play.name, play.lost) }.into();
        play.turn_name = turn.clone();
        let workload = scenario.session_workload[play.session] as usize;
        let name = self.config.router.workloads.get(workload).map(|workload| workload.name.clone());
        let submit = Submit { turn: Some(&turn), session: Some(&play.name), workload: name.as_deref(), ..Submit::new(TurnInput::Prompt(&prompt)) };
        let decision = self.router.submit(self.now, &submit)?;
        self.counts[workload].submitted_turns += 1;
        self.by_turn.insert(turn, id);
        match decision.status {
            Status::Placed => self.run(&decision),
            Status::Held => {
                self.plays.get_mut(&id).expect("it is played").held = true;
                self.counts[workload].waited_turns += 1;
            }
            Status::Rejected | Status::Expired | Status::Lost => self.give_up(&decision),
        }
        Ok(())
    }

    pub(crate) fn drain(&mut self) {
        while let Some(decision) = self.router.drain() {
            match decision.status {
                Status::Placed => self.run(&decision),
                Status::Lost => self.lost(&decision),
                _ => self.give_up(&decision),
            }
        }
    }

    /// Sends a placed turn to its engine.
    fn run(&mut self, decision: &Decision) {
        let id = self.by_turn[&decision.turn];
        let scenario = self.config.scenario.clone();
        let play = self.plays.get_mut(&id).expect("a placed turn is played");
        let counts = &mut self.counts[scenario.session_workload[play.session] as usize];
        counts.placed_turns += 1;
        counts.at_once += u64::from(!play.held);
        if std::mem::take(&mut play.held) {
            counts.holds_s.push(seconds(self.now - play.submitted_at) as f32);
        }
        let request = Request {
            id,
            prompt_tokens: scenario.turn_prompt_tokens[play.turn] as u64,
            output_tokens: scenario.turn_output_tokens[play.turn] as u64,
            chain: play.path.chain().clone(),
        };
        if self.config.feed.is_some() {
            self.by_chain.insert(request.chain.as_ptr().addr(), id);
        }
        let engine = self.names[decision.replica.as_ref().expect("a placed turn has a replica")];
        if !self.engines[engine].holds(&request) {
            // The prompt fits and prompt + output do not: the engine would stop it at the length limit.
            let _ = self.router.abort(self.now, &decision.turn, &Completion::default());
            self.give_up(decision);
            return;
        }
        self.engines[engine].arrive(self.now, request);
        self.schedule_engine(engine);
    }

    fn schedule_engine(&mut self, engine: usize) {
        if let Some(at) = self.engines[engine].due() {
            self.schedule(at, Happening::Engine(engine));
        }
    }

    /// A turn cannot be served: its session ends unfinished.
    fn give_up(&mut self, decision: &Decision) {
        let Some(id) = self.by_turn.remove(&decision.turn) else { return };
        let play = self.plays.remove(&id).expect("its session is played");
        let counts = &mut self.counts[self.config.scenario.session_workload[play.session] as usize];
        counts.aborted_turns += 1;
        counts.failed_sessions += 1;
        let _ = self.router.end_session(self.now, &play.name, false);
        self.ended(&play);
    }

    fn ended(&mut self, play: &Play) {
        if play.root {
            self.outstanding -= 1;
            self.start_sessions();
        }
    }

    fn engine(&mut self, engine: usize) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.engines[engine].step(self.now, &mut events);
        self.publish(engine)?;
        for event in events.drain(..) {
            match event {
                Event::FirstToken { id, cached_tokens } => self.first_token(id, cached_tokens)?,
                Event::Progress { id, output_tokens } => {
                    let turn = self.plays[&id].turn_name.clone();
                    self.router.progress(self.now, &turn, output_tokens, None)?;
                }
                Event::Preempted { id } => {
                    let session = self.plays[&id].session;
                    counts_of(&mut self.counts, &self.config.scenario, session).preemptions += 1;
                }
                Event::Finished { id, cached_tokens } => self.complete(id, cached_tokens)?,
            }
            self.drain();
        }
        self.events = events;
        self.schedule_engine(engine);
        Ok(())
    }

    fn first_token(&mut self, id: u64, cached_tokens: u64) -> Result<()> {
        let turn = self.plays[&id].turn_name.clone();
        let play = &self.plays[&id];
        let counts = &mut self.counts[self.config.scenario.session_workload[play.session] as usize];
        let block = u64::from(self.hasher.block_tokens());
        counts.prompt_tokens += self.config.scenario.turn_prompt_tokens[play.turn] as u64;
        counts.cached_tokens += cached_tokens;
        counts.reprefill_tokens += (play.reusable_tokens / block * block).saturating_sub(cached_tokens);
        self.router.progress(self.now, &turn, 1, None)?;
        Ok(())
    }

    fn complete(&mut self, id: u64, cached_tokens: u64) -> Result<()> {
        let turn = self.plays[&id].turn_name.clone();
        let scenario = self.config.scenario.clone();
        if scenario.turn_output_tokens[self.plays[&id].turn] == 1 {
            // The only token is the first one: nobody has told of it yet.
            self.router.progress(self.now, &turn, 1, None)?;
        }
        self.by_turn.remove(&turn);
        let play = self.plays.get_mut(&id).expect("a running turn is played");
        let (prompt, output) = (scenario.turn_prompt_tokens[play.turn], scenario.turn_output_tokens[play.turn]);
        let completion =
            Completion { output: Some(&[play.path.output(prompt as usize)]), cached_tokens: Some(cached_tokens), ..Completion::default() };
        self.router.complete(self.now, &turn, &completion)?;
        let counts = &mut self.counts[scenario.session_workload[play.session] as usize];
        counts.turns += 1;
        counts.output_tokens += output as u64;
        counts.least_gpu_s += self.config.engine.least_s(prompt as u64 - play.reusable_tokens, play.reusable_tokens, output as u64);
        play.computed_tokens = (prompt + output - 1) as u64;
        let (session, lap, done) = (play.session, play.lap, play.turn - scenario.turns(play.session).start);
        play.turn += 1;
        play.lost = 0;
        let more = play.turn < scenario.turns(session).end;
        if more {
            let at = self.now + nanos(scenario.turn_gap_s[play.turn]);
            self.schedule(at, Happening::Submit(id));
        }
        for child in self.children.get(&session).cloned().unwrap_or_default() {
            if scenario.session_after_turn[child] == done as i64 {
                self.start(child, lap, false);
            }
        }
        if !more {
            let play = self.plays.remove(&id).expect("it is played");
            counts_of(&mut self.counts, &scenario, session).finished_sessions += 1;
            counts_of(&mut self.counts, &scenario, session).last_finish_s = seconds(self.now);
            self.finishes.push(Finish { session, lap, started_s: seconds(play.started_at), finished_s: seconds(self.now) });
            self.router.end_session(self.now, &play.name, true)?;
            self.ended(&play);
            self.update_weights()?;
        }
        Ok(())
    }

    fn sample(&mut self) {
        if self.now < self.next_sample {
            return;
        }
        let sum = |read: fn(&Counts) -> u64| self.counts.iter().map(read).sum::<u64>() as f64;
        let stats = self.router.stats();
        self.series.push(Sample {
            time_s: seconds(self.now),
            finished_sessions: sum(|counts| counts.finished_sessions),
            output_tokens: self.engines.iter().map(|engine| engine.output_tokens).sum::<u64>() as f64,
            prompt_tokens: sum(|counts| counts.prompt_tokens),
            cached_tokens: sum(|counts| counts.cached_tokens),
            charge_tokens: self.router.charge_tokens() as f64,
            used_tokens: self.engines.iter().map(Engine::used_tokens).sum::<u64>() as f64,
            held_turns: stats.held_turns as f64,
            running_turns: (stats.open_turns - stats.held_turns) as f64,
            preemptions: self.preemptions() as f64,
        });
        self.next_sample = self.now + nanos(self.config.sample_period_s);
    }

    /// State for a policy.
    pub fn view(&mut self) -> FleetView {
        let view = self.router.view(self.now);
        self.drain();
        view
    }

    /// Limits from a policy.
    ///
    /// # Errors
    /// Those of [`Router::set_limits`].
    pub fn set_limits(&mut self, limits: &Limits, step: i64) -> Result<()> {
        self.router.set_limits(self.now, limits, step)?;
        self.drain();
        Ok(())
    }
}

pub(crate) fn counts_of<'a>(counts: &'a mut [Counts], scenario: &Scenario, session: usize) -> &'a mut Counts {
    &mut counts[scenario.session_workload[session] as usize]
}
