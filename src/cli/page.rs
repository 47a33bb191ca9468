//! `rendez report`: interval logs as one page for people, with everything in it: no script, no font, no address.
//!
//! Knows logs of HdrHistogram, and not what wrote them. Plots are SVG within the page, drawn here: their colours are
//! the page's own variables, which is what lets one page be read in the dark, by day and on paper, and what no crate
//! that draws does.

mod log;
mod plot;

use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::error::CliError;
use super::units::show_nanos;
use log::{Log, OVER_TIME, Series};
use plot::{Curve, Scale};
use rendez::files::Output;

/// Examples of its use.
pub(super) const EXAMPLES: &str = "\
Examples:
  rendez report run.hlog --html run.html
  rendez report before.hlog after.hlog --html both.html      beside each other

Logs are of `rendez bench --hdr-log`, or of any other tool that writes intervals of HdrHistogram, version 1.3.";

/// Quantiles of the table.
const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];

/// Reads the logs and writes the page.
///
/// # Errors
/// `FILE_UNREADABLE`, `HDR_LOG_MALFORMED`, `FILE_UNWRITABLE`.
pub fn make(logs: &[PathBuf], html: &Path) -> Result<(), CliError> {
    let file = Html::open(html)?;
    let logs = logs
        .iter()
        .map(|path| Log::read(path))
        .collect::<Result<Vec<_>, _>>()?;
    file.write(&logs)
}

/// The file of a page, opened before there is anything to write.
#[derive(Debug)]
pub(super) struct Html<'a> {
    path: &'a Path,
    output: Output,
}

impl<'a> Html<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Self, CliError> {
        let output = Output::open(path).map_err(|error| CliError::unwritable(path, &error))?;
        Ok(Self { path, output })
    }

    /// The page of one log, under a name of its own if one is given.
    pub(super) fn write_one(self, log: &Path, name: Option<&str>) -> Result<(), CliError> {
        let mut log = Log::read(log)?;
        if let Some(name) = name {
            name.clone_into(&mut log.name);
        }
        self.write(&[log])
    }

    fn write(mut self, logs: &[Log]) -> Result<(), CliError> {
        let written = self.output.write_all(page(logs).as_bytes());
        written
            .and_then(|()| self.output.finish())
            .map_err(|error| CliError::unwritable(self.path, &error))
    }
}

/// A series that is drawn: of which log, under which name.
struct Drawn<'a> {
    name: String,
    log: usize,
    series: &'a Series,
}

fn page(logs: &[Log]) -> String {
    let title = logs
        .iter()
        .map(|log| log.name.as_str())
        .collect::<Vec<_>>()
        .join(" · ");
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<h1>{0}</h1>\n",
        escaped(&title)
    );
    for log in logs {
        let _ = writeln!(
            page,
            "<section class=\"about\"><h2>{}</h2><dl>",
            escaped(&log.name)
        );
        for (what, text) in &log.about {
            let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escaped(what), escaped(text));
        }
        page.push_str("</dl></section>\n");
    }
    let mut tags: Vec<&str> = Vec::new();
    let of_measurements = logs
        .iter()
        .flat_map(|log| log.series.keys())
        .filter(|tag| !tag.contains('/'));
    for tag in of_measurements {
        if !tags.contains(&tag.as_str()) {
            tags.push(tag);
        }
    }
    tags.sort_by_key(|tag| size_of(tag));
    for tag in tags {
        measurement(&mut page, logs, tag);
    }
    page.push_str("<footer>Times are those of the log: of a ping-pong whole round trips. Made by rendez.</footer>\n");
    page.push_str("</body>\n</html>\n");
    page
}

/// The size that a tag of `rendez bench` ends with, and what stands before it; tags without one come first.
fn size_of(tag: &str) -> (Option<u64>, &str) {
    let sized = tag
        .rsplit_once('-')
        .and_then(|(what, size)| Some((size.parse().ok()?, what)));
    sized.map_or((None, tag), |(size, what)| (Some(size), what))
}

fn measurement(page: &mut String, logs: &[Log], tag: &str) {
    let drawn: Vec<Drawn<'_>> = logs
        .iter()
        .enumerate()
        .filter_map(|(at, log)| {
            let series = log.series.get(tag)?;
            Some(Drawn {
                name: log.name.clone(),
                log: at,
                series,
            })
        })
        .collect();
    let name = if tag.is_empty() { "all intervals" } else { tag };
    let _ = writeln!(
        page,
        "<section><h2>{}</h2>\n{}",
        escaped(name),
        table(&drawn)
    );
    let _ = writeln!(page, "<div class=\"plots\">");
    let distributions: Vec<Curve> = drawn
        .iter()
        .map(|drawn| Curve {
            name: drawn.name.clone(),
            colour: drawn.log,
            points: drawn.series.percentiles(),
        })
        .collect();
    let _ = writeln!(
        page,
        "<figure>{}<figcaption>Time by percentile, the axis stretched towards the slowest</figcaption></figure>",
        plot::draw("percentiles", &distributions, Scale::Nines, "percentile")
    );
    let over_time: Vec<Curve> = drawn
        .iter()
        .flat_map(|drawn| {
            let of = |(which, (name, _)): (usize, &(&str, f64))| Curve {
                name: format!("{} {name}", drawn.name),
                colour: drawn.log + 4 * which,
                points: drawn.series.over_time(which),
            };
            OVER_TIME.iter().enumerate().map(of)
        })
        .collect();
    let _ = writeln!(
        page,
        "<figure>{}<figcaption>Median and 99th percentile of each interval</figcaption></figure>",
        plot::draw(
            "over time",
            &over_time,
            Scale::Seconds,
            "seconds since the start"
        )
    );
    page.push_str("</div>\n");
    for (at, log) in logs.iter().enumerate() {
        let stages = stages_of(log, tag);
        if !stages.is_empty() {
            let _ = writeln!(
                page,
                "<figure>{}<figcaption>Where the time went, {}: mean of each stage, of the values that were timed \
                 </figcaption></figure>",
                plot::bars(&stages),
                escaped(&logs[at].name)
            );
        }
    }
    page.push_str("</section>\n");
}

/// Stage by stage: its name, its mean and its 99th percentile, of the way that most values took.
fn stages_of(log: &Log, tag: &str) -> Vec<(String, f64, f64, u64)> {
    const ORDER: [&str; 6] = ["queued", "matched", "posted", "wire", "landed", "woken"];
    let prefix = format!("{tag}/");
    let under = |key: &str| {
        let rest = key.strip_prefix(&prefix)?;
        let (way, stage) = rest.split_once('/')?;
        Some((way.to_owned(), stage.to_owned()))
    };
    let found: Vec<(String, String, &Series)> = log
        .series
        .iter()
        .filter_map(|(key, series)| under(key).map(|(way, stage)| (way, stage, series)))
        .collect();
    let Some((most, ..)) = found.iter().max_by_key(|(.., series)| series.count()) else {
        return Vec::new();
    };
    let of_stage = |stage: &str| {
        let known = found
            .iter()
            .find(|(way, name, _)| way == most && name == stage);
        known.map(|(.., series)| {
            (
                stage.to_owned(),
                series.mean(),
                series.at(0.99),
                series.count(),
            )
        })
    };
    ORDER.iter().filter_map(|stage| of_stage(stage)).collect()
}

fn table(drawn: &[Drawn<'_>]) -> String {
    let mut table =
        String::from("<div class=\"wide\"><table><thead><tr><th></th><th>count</th><th>mean</th>");
    for (name, _) in QUANTILES {
        let _ = write!(table, "<th>{name}</th>");
    }
    table.push_str("</tr></thead><tbody>");
    let first = drawn.first().map(|drawn| drawn.series);
    for Drawn { name, log, series } in drawn {
        let _ = write!(
            table,
            "<tr><th><svg class=\"key\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"f{}\" width=\"10\" \
             height=\"10\"/></svg> {}</th><td data-of=\"count\">{}</td><td data-of=\"mean\">{}</td>",
            log % 8,
            escaped(name),
            series.count(),
            show_nanos(series.mean())
        );
        for (of, quantile) in QUANTILES {
            let time = series.at(quantile);
            let change = first
                .filter(|_| drawn.len() > 1 && *log > 0)
                .map(|first| time / first.at(quantile) - 1.0);
            let change = change
                .filter(|change| change.is_finite())
                .map_or_else(String::new, |change| {
                    format!(" <small>{:+.0} %</small>", change * 100.0)
                });
            let time = show_nanos(time);
            let _ = write!(table, "<td data-of=\"{of}\">{time}{change}</td>");
        }
        table.push_str("</tr>");
    }
    table.push_str("</tbody></table></div>");
    table
}

/// A text within the page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const STYLE: &str = "\
:root { --paper: #fff; --ink: #1b1f24; --soft: #5d6670; --rule: #d8dde2;
  --c0: #0b62c4; --c1: #c4470b; --c2: #16794c; --c3: #8a3ab9;
  --c4: #6aa6ea; --c5: #ee9a6c; --c6: #63bb92; --c7: #c194dd; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec; --soft: #9aa4ae; --rule: #333a41;
  --c0: #5ea4f2; --c1: #f0905c; --c2: #4fc28c; --c3: #c58be6;
  --c4: #2f6fb5; --c5: #a85a30; --c6: #2f8059; --c7: #7f4f9c; } }
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --rule: #bbb;
  --c0: #0b62c4; --c1: #c4470b; --c2: #16794c; --c3: #8a3ab9; }
  section, figure { break-inside: avoid; } body { max-width: none; margin: 0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0;
  color: var(--soft); font-size: .9rem; }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
tbody th, thead th:first-child { text-align: left; font-weight: 600; }
small { color: var(--soft); }
.key { width: .7rem; height: .7rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 1rem 0 0; min-width: 0; }
figcaption, footer { color: var(--soft); font-size: .85rem; }
footer { margin-top: 2rem; }
.plot { width: 100%; height: auto; display: block; }
.bars { max-width: 40rem; }
.plot text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.plot .grid { stroke: var(--rule); stroke-width: 1; }
.plot .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
tbody th { position: sticky; left: 0; background: var(--paper); }
@media (max-width: 36rem) { .plot text { font-size: 16px; } th, td { padding-right: .45rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dt { margin-top: .3rem; } dd { color: var(--ink); }
  thead { display: none; } tbody, table { display: block; }
  tr { display: grid; grid-template-columns: repeat(3, 1fr); padding: .3rem 0; border-bottom: 1px solid var(--rule); }
  tbody th { grid-column: 1 / -1; position: static; white-space: normal; overflow-wrap: anywhere; }
  th, td { text-align: left; border: 0; padding: .1rem 0; }
  td::before { content: attr(data-of); display: block; color: var(--soft); font-size: .8rem; } }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); } .s3 { stroke: var(--c3); }
.s4 { stroke: var(--c4); } .s5 { stroke: var(--c5); } .s6 { stroke: var(--c6); } .s7 { stroke: var(--c7); }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.f4 { fill: var(--c4); } .f5 { fill: var(--c5); } .f6 { fill: var(--c6); } .f7 { fill: var(--c7); }
";

#[cfg(test)]
mod tests;
