//! Runs on real engines.
