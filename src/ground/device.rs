//! Device names.

/// A device name, full or partial.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct DeviceName {}
