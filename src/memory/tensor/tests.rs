//! Tests of `tensor.rs`.
