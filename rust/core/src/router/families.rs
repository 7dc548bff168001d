//! Families: sessions and the sub-agents that they wait for.
//!
//! A session may name a parent. While that lives, the child counts in no cap of sessions and queues with its family, and
//! what of its ancestors is idle may be reclaimed for it whatever the lease: else parents that fill every slot would wait
//! for children that wait for a slot.

use std::sync::Arc;

use super::Router;
use super::types::Submit;
use crate::error::{Error, Result};

/// Generations that are looked at: a bound on the work, far above what agents do.
const GENERATIONS: usize = 64;

impl Router {
    /// The live ancestors of a session, the nearest first.
    pub(super) fn ancestors(&self, session: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let mut at = session;
        while let Some(&parent) = self.sessions[at].parent.as_ref().and_then(|name| self.session_slots.get(name)) {
            if found.len() == GENERATIONS || parent == session || found.contains(&parent) {
                break;
            }
            found.push(parent);
            at = parent;
        }
        found
    }

    /// Whether the session counts in no cap of sessions: it was admitted as a member of a family, or would be now.
    pub(super) fn is_member(&self, session: u32) -> bool {
        let state = &self.sessions[session];
        if state.home.is_some() { state.member } else { self.has_live_parent(session) }
    }

    pub(super) fn has_live_parent(&self, session: u32) -> bool {
        self.sessions[session].parent.as_ref().is_some_and(|name| self.session_slots.contains_key(name))
    }

    /// First admission of the family that a new session belongs to: it queues there.
    pub(super) fn family_admission(&self, session: u32) -> Option<u64> {
        self.ancestors(session).into_iter().rev().find_map(|ancestor| self.sessions[ancestor].admitted)
    }

    /// A session has one parent, and is not its own ancestor.
    pub(super) fn check_parent(&self, submit: &Submit<'_>) -> Result<()> {
        let Some(parent) = submit.parent else { return Ok(()) };
        let refuse = |value: String, accepted: &'static str| Err(Error::InvalidArgument { argument: "parent", value, accepted });
        let Some(session) = submit.session else { return Ok(()) };
        if session == parent {
            return refuse(format!("{parent:?}"), "another session than the one that names it");
        }
        let Some(&slot) = self.session_slots.get(session) else { return Ok(()) };
        match &self.sessions[slot].parent {
            Some(known) if **known != *parent => return refuse(format!("{parent:?}"), "the parent that the session was given first"),
            _ => {}
        }
        let Some(&above) = self.session_slots.get(parent) else { return Ok(()) };
        if self.ancestors(above).contains(&slot) {
            return refuse(format!("{parent:?}"), "a session that does not descend from the one that names it");
        }
        Ok(())
    }

    /// Notes the parent that a submit names.
    pub(super) fn adopt(&mut self, session: u32, parent: Option<&str>) {
        if let Some(parent) = parent
            && self.sessions[session].parent.is_none()
        {
            self.sessions[session].parent = Some(Arc::from(parent));
        }
    }
}
