//! Tests of `classes.rs`.
