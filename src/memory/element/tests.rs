//! Tests of `element.rs`.
