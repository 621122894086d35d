//! The names that tools may have.

/// The two tools' names that the model sees; no installed tool may have one of them.
pub const FIND_TOOL: &str = "find_tool";
pub const CALL_TOOL: &str = "call_tool";

/// How many bytes a tool's name may have.
pub const NAME_BYTES: usize = 128;

/// Whether a tool may be installed by this name.
pub fn usable(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-./".contains(&b);
    (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(fits) && name != FIND_TOOL && name != CALL_TOOL
}
