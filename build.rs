//! Asks the linker for short relocations, where they can be had.
//!
//! A program that may lie anywhere in memory has some ten thousand pointers that the loader must put right. Written out
//! they are 370 kB of the file, which the loader also reads at each start; as a bitmap (`DT_RELR`) they are 5 kB. glibc
//! understands that since 2.36, and a program that has it does not start with an older one.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const SHORT: &str = "-Wl,-z,pack-relative-relocs";

/// It can be linked where the C library is glibc 2.36 or newer, for it calls what that brought.
const PROBE: &str = "unsafe extern \"C\" { fn arc4random() -> u32; } fn main() { println!(\"{}\", unsafe { arc4random() }); }";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    if can_be_linked(Path::new(&env::var("OUT_DIR")?))? {
        println!("cargo::rustc-link-arg-bins={SHORT}");
    }
    Ok(())
}

/// Whether the compiler, linker and C library that the programs will be made with can make the probe.
fn can_be_linked(folder: &Path) -> Result<bool, Box<dyn Error>> {
    let source = folder.join("probe.rs");
    fs::write(&source, PROBE)?;
    let mut rustc = Command::new(env::var("RUSTC")?);
    rustc
        .arg("--edition=2024")
        .arg("--target")
        .arg(env::var("TARGET")?)
        .arg("-C")
        .arg(format!("link-arg={SHORT}"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.to_string_lossy()));
    }
    rustc.args(env::var("CARGO_ENCODED_RUSTFLAGS")?.split('\x1f').filter(|flag| !flag.is_empty()));
    rustc.arg("-o").arg(folder.join("probe")).arg(source);
    Ok(rustc.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
}
