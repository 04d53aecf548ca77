//! How the shim is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // At a fixed place in memory: pages that name others of the program are the same in every process then, so all shims
    // share them. Moved about, each would have some 270 kB of its own, and change them one by one as it starts.
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
