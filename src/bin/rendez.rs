//! The `rendez` command.
fn main() {}
