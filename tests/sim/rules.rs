//! Rules: for each of the sixteen rules of the peer protocol, a world that needs it.
