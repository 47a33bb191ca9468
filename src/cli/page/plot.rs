//! Plots as SVG: curves over percentiles or time, and bars of stages. Times go up on a logarithmic scale.
//!
//! Knows numbers and names. Colours are classes of the page.

use std::fmt::Write;

use super::super::units::show_nanos;
use super::escaped;

/// A line of a plot.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    /// Which of the page's colours.
    pub(super) colour: usize,
    /// Place along the axis, and nanoseconds.
    pub(super) points: Vec<(f64, f64)>,
}

/// What the axis along the bottom counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scale {
    /// The nines of a percentile: 0, 90, 99, 99.9, …
    Nines,
    /// Seconds.
    Seconds,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 68.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 42.0;
/// Lines of names below the plot.
const NAME_HEIGHT: f64 = 18.0;

pub(super) fn draw(what: &str, curves: &[Curve], scale: Scale, axis: &str) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let times = || points().map(|(_, time)| time.max(1.0));
    let low = times().fold(f64::MAX, f64::min).log10().floor();
    let high = times().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    let from = points().map(|(at, _)| *at).fold(f64::MAX, f64::min);
    let from = if from == f64::MAX { 0.0 } else { from };
    let to = points()
        .map(|(at, _)| *at)
        .fold(0.0, f64::max)
        .max(from + 1e-3);
    let low = if low.is_finite() && low < 300.0 {
        low
    } else {
        0.0
    };
    let x = |at: f64| LEFT + (at - from) / (to - from) * (WIDTH - LEFT - RIGHT);
    let y = |time: f64| {
        let share = (time.max(1.0).log10() - low) / (high - low);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    };
    let height = HEIGHT + NAME_HEIGHT * curves.len() as f64;
    let mut svg = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escaped(what)
    );
    for decade in low as i32..=high as i32 {
        let time = 10f64.powi(decade);
        let at = y(time);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            show_nanos(time)
        );
    }
    for (at, name) in ticks(scale, from, to) {
        let at = x(at);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 8.0,
        escaped(axis)
    );
    for (index, curve) in curves.iter().enumerate() {
        let colour = curve.colour % 8;
        let _ = write!(svg, "<polyline class=\"line s{colour}\" points=\"");
        for (at, time) in &curve.points {
            let _ = write!(svg, "{:.1},{:.1} ", x(*at), y(*time));
        }
        let at = HEIGHT + NAME_HEIGHT * index as f64;
        let _ = write!(
            svg,
            "\"/><rect class=\"f{colour}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"10\" height=\"10\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            at + 1.0,
            LEFT + 16.0,
            at + 10.0,
            escaped(&curve.name)
        );
    }
    svg.push_str("</svg>");
    svg
}

fn ticks(scale: Scale, from: f64, to: f64) -> Vec<(f64, String)> {
    match scale {
        Scale::Nines => {
            let names = [
                "0", "90", "99", "99.9", "99.99", "99.999", "99.9999", "99.99999",
            ];
            let all = names
                .iter()
                .enumerate()
                .map(|(nines, name)| (nines as f64, format!("{name}%")));
            all.filter(|(at, _)| *at <= to + 1e-9).collect()
        }
        Scale::Seconds => {
            let rough = ((to - from) / 6.0).max(1e-6);
            let power = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0]
                .into_iter()
                .map(|by| by * power)
                .find(|step| *step >= rough);
            let step = step.unwrap_or(rough);
            let first = (from / step).ceil() as i64;
            let count = ((to - from) / step) as i64;
            let name = |at: f64| format!("{}", (at * 1e6).round() / 1e6);
            (first..=first + count)
                .map(|at| at as f64 * step)
                .filter(|at| *at <= to)
                .map(|at| (at, name(at)))
                .collect()
        }
    }
}

/// Stages as bars, one below the other: name, mean, 99th percentile, count.
pub(super) fn bars(stages: &[(String, f64, f64, u64)]) -> String {
    const ROW: f64 = 26.0;
    const NAMES: f64 = 78.0;
    // A page that is narrow has larger letters, and they must fit here.
    const FIGURES: f64 = 270.0;
    let sum: f64 = stages.iter().map(|(_, mean, ..)| mean).sum();
    let most = stages.iter().map(|(_, mean, ..)| *mean).fold(1.0, f64::max);
    let width = WIDTH;
    let height = ROW * (stages.len() + 1) as f64 + 4.0;
    let mut svg = format!(
        "<svg class=\"plot bars\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"stages\">"
    );
    for (index, (name, mean, slow, count)) in stages.iter().enumerate() {
        let at = ROW * index as f64;
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{:.1}\">{}</text><rect class=\"f{}\" x=\"{NAMES}\" y=\"{:.1}\" width=\"{:.1}\" \
             height=\"16\"/><text x=\"{:.1}\" y=\"{:.1}\">{} · p99 {} · {count} timed</text>",
            at + 16.0,
            escaped(name),
            index % 8,
            at + 4.0,
            (mean / most * (width - NAMES - FIGURES - 10.0)).max(1.0),
            width - FIGURES,
            at + 16.0,
            show_nanos(*mean),
            show_nanos(*slow)
        );
    }
    let _ = write!(
        svg,
        "<text x=\"0\" y=\"{:.1}\">sum</text><text x=\"{:.1}\" y=\"{:.1}\">{}</text></svg>",
        height - 10.0,
        width - FIGURES,
        height - 10.0,
        show_nanos(sum)
    );
    svg
}
