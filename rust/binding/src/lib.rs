//! The Python extension `turnout._core`.
