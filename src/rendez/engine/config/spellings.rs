//! Spellings: the variables of TensorFlow's RDMA, and the settings that do their work here.
//!
//! Its documentation and its code disagreed on six names, so that what was documented had no effect; both are read, and
//! if both are set, the code's name wins. Knows names; the values are read as the settings' own.

use std::collections::BTreeMap;

use super::layers::hint;
use super::table::Setting;
use super::{Config, Origin};
use crate::ground::Status;
use crate::ground::limits::VERBS_WINDOW;

/// What they begin with.
const PREFIX: &str = "RDMA_";

/// A variable, and the key of the setting; of two for one key the later counts.
const SPELLINGS: [(&str, &str); 16] = [
    ("RDMA_DEVICE", "verbs_device"),
    ("RDMA_DEVICE_PORT", "verbs_port"),
    ("RDMA_GID_INDEX", "verbs_gid_index"),
    ("RDMA_QP_PKEY_INDEX", "verbs_pkey_index"),
    ("RDMA_PKEY", "verbs_pkey_index"),
    ("RDMA_QP_QUEUE_DEPTH", DEPTH),
    ("RDMA_QUEUE_DEPTH", DEPTH),
    ("RDMA_QP_TIMEOUT", "verbs_timeout"),
    ("RDMA_TIMEOUT", "verbs_timeout"),
    ("RDMA_QP_RETRY_COUNT", "verbs_retry_count"),
    ("RDMA_RETRY_CNT", "verbs_retry_count"),
    ("RDMA_QP_SL", "verbs_service_level"),
    ("RDMA_SL", "verbs_service_level"),
    ("RDMA_QP_MTU", "verbs_mtu"),
    ("RDMA_MTU", "verbs_mtu"),
    ("RDMA_TRAFFIC_CLASS", "verbs_traffic_class"),
];

/// Queues were as deep as a thousand there; here credit comes back sooner.
const DEPTH: &str = "verbs_depth";

impl Config {
    /// Lets TensorFlow's variables override, and says what is odd about them.
    ///
    /// # Errors
    /// `InvalidArgument` names the variable, and what would be right.
    pub(super) fn apply_spellings(
        &mut self,
        environment: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, Status> {
        let mut warnings = Vec::new();
        for (name, key) in SPELLINGS {
            let value = environment.get(name).map(|text| text.trim());
            let (Some(value), Some(setting)) =
                (value.filter(|text| !text.is_empty()), Setting::find(key))
            else {
                continue;
            };
            let mut text = value.to_owned();
            if key == DEPTH
                && text
                    .parse()
                    .is_ok_and(|depth: u64| depth > VERBS_WINDOW.into())
            {
                text = VERBS_WINDOW.to_string();
                warnings.push(format!(
                    "{name} is {value}, and is taken as {text}, the most there is here"
                ));
            }
            self.set_variable(setting, name, text)?;
        }
        let known = || SPELLINGS.iter().map(|(name, _)| *name);
        let is_unknown =
            |name: &&String| name.starts_with(PREFIX) && !known().any(|known| known == *name);
        for name in environment.keys().filter(is_unknown) {
            let hint = hint(name, known(), str::to_owned);
            warnings.push(format!(
                "{name} is ignored: no setting corresponds to it{hint}"
            ));
        }
        Ok(warnings)
    }

    fn set_variable(
        &mut self,
        setting: &'static Setting,
        name: &str,
        text: String,
    ) -> Result<(), Status> {
        let shown = format!("{name}={text}");
        self.set(
            setting,
            &toml::Value::String(text),
            Origin::Variable(name.to_owned()),
            &shown,
        )
    }
}
