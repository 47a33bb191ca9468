//! The shared library names itself, so that what is linked with it asks for it by name and not by the path it had then.

fn main() {
    // The name has no version: the one symbol never changes, and gives each version of the table that there is.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librendez_c.so");
    println!("cargo::rerun-if-changed=build.rs");
}
