//! Room rendezvous.
