//! How much memory a process has.

/// What a line of its status tells (`VmRSS` now, `VmHWM` at most ever, `RssAnon` what is its own), in bytes. `process` is
/// its number, or `self`.
pub fn memory(process: &str, line: &str) -> u64 {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let told = status.lines().find_map(|told| told.strip_prefix(line)?.strip_prefix(':'));
    let told = told.unwrap_or_else(|| panic!("no {line} in {path}:\n{status}"));
    told.trim().trim_end_matches(" kB").parse::<u64>().expect("a whole number") * 1024
}
