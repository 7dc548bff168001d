//! Owners: processes that answer for sessions. When one is lost, what it left open ends.

use super::Router;
use super::types::{Effect, Outcome};

impl Router {
    /// Notes who answers for a session; the last one that was named does.
    pub(super) fn own(&mut self, session: u32, owner: Option<&str>) {
        let Some(owner) = owner else { return };
        if self.sessions[session].owner.as_deref() == Some(owner) {
            return;
        }
        self.disown(session);
        let owner: std::sync::Arc<str> = owner.into();
        self.owners.entry(owner.clone()).or_default().insert(session);
        self.sessions[session].owner = Some(owner);
    }

    /// Takes a session from its owner, before it is forgotten or given to another.
    pub(super) fn disown(&mut self, session: u32) {
        let Some(owner) = self.sessions[session].owner.take() else { return };
        let sessions = self.owners.get_mut(&owner).expect("an owner is listed while it owns");
        sessions.remove(&session);
        if sessions.is_empty() {
            self.owners.remove(&owner);
        }
    }

    /// Ends every session of an owner that is gone, uncounted in the mixture, and aborts their turns. Never fails for an owner that
    /// has none.
    pub fn owner_lost(&mut self, now: u64, owner: &str) -> Outcome {
        let seq = self.begin(now);
        let sessions: Vec<u32> = self.owners.get(owner).into_iter().flatten().copied().collect();
        for &session in &sessions {
            self.finish_session(session, false);
        }
        self.stats.owners_lost += u64::from(!sessions.is_empty());
        self.pump(None);
        Outcome { seq, effect: if sessions.is_empty() { Effect::Unknown } else { Effect::Done } }
    }
}
