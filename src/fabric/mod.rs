//! Room fabric.
