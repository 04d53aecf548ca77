//! Sets linker options of the shim.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Linked at a fixed address: relocated pages would differ in every process, and each shim would
    // have about 270 kB of private memory and relocate it at its start.
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
