//! Tests of `strings.rs`.
