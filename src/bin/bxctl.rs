//! The terminal client.

fn main() {}
