//! The reader of device names: one pass from left to right, a component at a time.
//!
//! Knows the syntax only; the caller says which components must be set.

use std::sync::Arc;

use super::{Component, DeviceName, Fault};
use crate::ground::limits::{DEVICE_TYPE_BYTES_MAX, JOB_NAME_BYTES_MAX};

/// Reads a full or partial name.
pub(super) fn name(text: &str) -> Result<DeviceName, Fault> {
    Scan::new(text).run()
}

/// A letter, then letters, digits and underscores, all of them ASCII.
pub(super) fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// What is read of a name, and what is left to read.
struct Scan<'a> {
    rest: &'a str,
    name: DeviceName,
    seen: u8,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            name: DeviceName::default(),
            seen: 0,
        }
    }

    fn run(mut self) -> Result<DeviceName, Fault> {
        if self.rest == "/" {
            return Ok(self.name);
        }
        while !self.rest.is_empty() {
            self.component()?;
        }
        Ok(self.name)
    }

    fn component(&mut self) -> Result<(), Fault> {
        if self.skip("/job:") {
            self.first(Component::Job)?;
            self.name.job = self.value(Component::Job, Self::job)?;
        } else if self.skip("/replica:") {
            self.first(Component::Replica)?;
            self.name.replica = self.value(Component::Replica, Self::number)?;
        } else if self.skip("/task:") {
            self.first(Component::Task)?;
            self.name.task = self.value(Component::Task, Self::number)?;
        } else if self.skip("/device:") {
            self.first(Component::Type)?;
            self.name.kind = self.value(Component::Type, Self::kind)?;
            if self.skip(":") {
                self.name.index = self.value(Component::Index, Self::number)?;
            }
        } else if self.skip("/cpu:") || self.skip("/CPU:") {
            self.legacy("CPU")?;
        } else if self.skip("/gpu:") || self.skip("/GPU:") {
            self.legacy("GPU")?;
        } else {
            return Err(Fault::Unknown);
        }
        Ok(())
    }

    fn legacy(&mut self, kind: &str) -> Result<(), Fault> {
        self.first(Component::Type)?;
        self.name.kind = Some(kind.into());
        self.name.index = self.value(Component::Index, Self::number)?;
        Ok(())
    }

    /// A component counts as given even when it is given as `*`.
    const fn first(&mut self, component: Component) -> Result<(), Fault> {
        let bit = 1 << component as u8;
        if self.seen & bit != 0 {
            return Err(Fault::Repeated(component));
        }
        self.seen |= bit;
        Ok(())
    }

    fn value<T>(
        &mut self,
        component: Component,
        read: fn(&mut Self) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        if self.skip("*") {
            return Ok(None);
        }
        read(self).map(Some).ok_or(Fault::Value(component))
    }

    fn skip(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn job(&mut self) -> Option<Arc<str>> {
        self.word(&['/'], JOB_NAME_BYTES_MAX)
    }

    fn kind(&mut self) -> Option<Arc<str>> {
        self.word(&['/', ':'], DEVICE_TYPE_BYTES_MAX)
    }

    fn word(&mut self, ends: &[char], bytes_max: usize) -> Option<Arc<str>> {
        let len = self.rest.find(ends).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest;
        (is_word(word) && len <= bytes_max).then(|| word.into())
    }

    fn number(&mut self) -> Option<u32> {
        let len = self
            .rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(len);
        self.rest = rest;
        // `parse` alone would also take a plus sign; `digits` has none left.
        digits.parse().ok()
    }
}
