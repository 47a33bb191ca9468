//! Workers of one process: contexts, calls and passes.
