//! The `rendez` command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: rendez::cli::allocations::Counted = rendez::cli::allocations::Counted;

fn main() -> ExitCode {
    rendez::cli::main()
}
