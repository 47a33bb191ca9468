//! Tests of `lease.rs`.
