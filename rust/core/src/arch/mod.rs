//! Block-fingerprint kernels, one file per instruction set, each equal to [`portable`].

pub mod portable;
