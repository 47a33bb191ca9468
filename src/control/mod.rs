//! Room control.
