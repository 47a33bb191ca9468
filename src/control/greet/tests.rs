//! Tests of the greeting.
