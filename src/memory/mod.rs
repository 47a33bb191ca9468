//! Room memory.
