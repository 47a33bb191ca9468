//! The settings of an engine as Python gives them: a file or a table, the environment, and keyword arguments over both.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use rendez::Config;
use rendez::engine::{Origin, Setting, Sources};

use super::errors::{Failure, argument};

/// The settings that an engine of Python's starts with.
pub(crate) fn config_of(
    py: Python<'_>,
    task: Option<String>,
    given: Option<&Bound<'_, PyAny>>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Config> {
    let mut config = match given {
        Some(table) if table.cast::<PyMapping>().is_ok() => of_table(py, table)?,
        Some(path) => {
            let mut sources = Sources::of_process();
            sources.file = Some(path.extract::<PathBuf>()?);
            sources.load().map_err(Failure::from)?.told()
        }
        None => Config::load().map_err(Failure::from)?,
    };
    if let Some(settings) = settings.filter(|settings| !settings.is_empty()) {
        let text = toml_of(py, settings.as_any())?;
        config
            .apply_toml(&text, "Engine(…)")
            .map_err(Failure::from)?;
    }
    if let Some(task) = task {
        config.task = task;
    }
    if config.task.is_empty() {
        return Err(argument(
            "the engine's task has no name: Engine(\"/job:worker/task:0\"), or RENDEZ_TASK",
        )
        .into());
    }
    sized_for_python(&mut config);
    config.check().map_err(Failure::from)?;
    Ok(config)
}

/// Unless they are set: one shard, which is more than a process of Python can keep busy, and which yields its core.
fn sized_for_python(config: &mut Config) {
    let is_set = |config: &Config, key: &str| {
        Setting::find(key).is_some_and(|setting| config.origin(setting) != Origin::Default)
    };
    if !is_set(config, "shards") && !is_set(config, "cores") {
        config.shards = 1;
    }
    if !is_set(config, "share_cores") {
        config.share_cores = true;
    }
}

fn of_table(py: Python<'_>, table: &Bound<'_, PyAny>) -> PyResult<Config> {
    let mut config = Config::new("");
    let text = toml_of(py, table)?;
    config.apply_toml(&text, "config").map_err(Failure::from)?;
    config
        .apply_env(|name| std::env::var(name).ok())
        .map_err(Failure::from)?;
    Ok(config)
}

fn toml_of(py: Python<'_>, table: &Bound<'_, PyAny>) -> PyResult<String> {
    py.import("rendez._settings")?
        .getattr("toml")?
        .call1((table,))?
        .extract()
}
