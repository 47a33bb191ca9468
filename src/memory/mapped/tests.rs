//! Tests of `mapped.rs`.
