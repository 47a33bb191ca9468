//! Tests of the hello.
