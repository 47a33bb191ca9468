//! Devices: those that a graph can stand on, by number.
//!
//! Knows names and incarnations, and nothing of what a device can do.

use super::flow::DeviceIndex;
use rendez::ground::{DeviceName, Incarnation, Status, TaskName};

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its full name.
    pub name: DeviceName,
    /// Its task.
    pub task: TaskName,
    /// The same name as text.
    pub text: String,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// The devices of a session.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Devices(Vec<Device>);

impl Devices {
    /// The devices of these full names.
    ///
    /// # Errors
    /// `DEVICE_MALFORMED` for a name that is not full.
    pub fn new<'a>(
        devices: impl IntoIterator<Item = (&'a str, Incarnation)>,
    ) -> Result<Self, Status> {
        let mut all = vec![];
        for (text, incarnation) in devices {
            let name = DeviceName::parse_full(text)?;
            let Some(task) = name.task_name() else {
                continue;
            };
            all.push(Device {
                text: name.to_string(),
                task,
                name,
                incarnation,
            });
        }
        Ok(Self(all))
    }

    /// Those that match one of the partial names `filters`, or stand on `own` task; all if there are no filters.
    ///
    /// # Errors
    /// `DEVICE_MALFORMED` for a filter that is no device name.
    pub fn filtered(self, filters: &[String], own: Option<&TaskName>) -> Result<Self, Status> {
        if filters.is_empty() {
            return Ok(self);
        }
        let filters = filters.iter().map(|text| DeviceName::parse(text));
        let filters = filters.collect::<Result<Vec<_>, _>>()?;
        let wanted = |device: &Device| {
            own == Some(&device.task) || filters.iter().any(|filter| matches(filter, &device.name))
        };
        Ok(Self(self.0.into_iter().filter(wanted).collect()))
    }

    /// All, by number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.0.iter()
    }

    /// The device of that number.
    #[must_use]
    pub fn device(&self, index: DeviceIndex) -> Option<&Device> {
        self.0.get(index.0 as usize)
    }

    /// The number of the device of that name.
    #[must_use]
    pub fn find(&self, name: &DeviceName) -> Option<DeviceIndex> {
        let at = self.0.iter().position(|device| device.name == *name)?;
        u32::try_from(at).ok().map(DeviceIndex)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// True if `name` has all that `pattern` sets.
#[must_use]
pub(super) fn matches(pattern: &DeviceName, name: &DeviceName) -> bool {
    let mut filled = pattern.clone();
    filled.fill(name);
    filled == *name
}
