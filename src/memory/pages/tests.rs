//! Tests of `pages.rs`.
