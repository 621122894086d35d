//! Being built.

pub mod maintenance;
