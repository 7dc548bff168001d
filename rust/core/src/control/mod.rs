//! What crosses between the core and a policy: [`view::FleetView`] out, [`limits::Limits`] in.

pub mod limits;
pub mod view;
