//! The `rendez` command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: rendez_cli::allocations::Counted = rendez_cli::allocations::Counted;

fn main() -> ExitCode {
    rendez_cli::main()
}
