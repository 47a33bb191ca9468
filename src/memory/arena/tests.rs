//! Tests of `arena.rs`.
