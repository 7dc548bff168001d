//! Who may start next: limits compiled for enforcement, and the waiting line.

pub(crate) mod enforced;
pub(crate) mod entitlement;
pub(crate) mod line;
