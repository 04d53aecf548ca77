//! Dot plots: one per figure, one dot per value.

use std::fmt::Write as _;

use super::axis::Axis;
use super::{colour, escape, short};
use crate::report::results::Unit;
use crate::report::statistics::{median, percentile};
use crate::report::table::better;
use crate::report::{Report, Summary};

const WIDTH: f64 = 340.0;
const LEFT: f64 = 8.0;
const RIGHT: f64 = 332.0;
const ROW: f64 = 34.0;
/// Maximum number of dots per figure and runtime, to keep the page small.
const DOTS: usize = 150;

pub(super) fn all(report: &Report) -> String {
    let drawn: String = report.names().iter().filter_map(|(name, unit)| strip(report, name, *unit)).collect();
    if drawn.is_empty() { drawn } else { format!("<div class=\"grid\">{drawn}</div>") }
}

fn strip(report: &Report, name: &str, unit: Unit) -> Option<String> {
    let mut rows: Vec<(usize, &Summary)> = Vec::new();
    for (index, runtime) in report.runtimes.iter().enumerate() {
        rows.extend(runtime.figure(name).filter(|figure| !figure.values.is_empty()).map(|figure| (index, figure)));
    }
    let scale = Axis::logarithmic(rows.iter().flat_map(|(_, figure)| figure.values.iter().copied()), LEFT, RIGHT)?;
    let mut height = 4.0;
    let mut drawn = String::new();
    for (index, figure) in rows {
        row(&mut drawn, &scale, figure, index, height);
        height += ROW;
    }
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {:.1}\" role=\"img\" aria-label=\"values\">", height + 18.0);
    for tick in scale.ticks(6) {
        let x = scale.place(tick);
        write!(
            svg,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"2\" y2=\"{height:.1}\"/>\
             <text class=\"dim\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            height + 13.0
        )
        .ok();
    }
    let caption = format!("{} <span class=\"dim\">{}, {}</span>", escape(name), unit.label(), better(unit));
    Some(format!("<figure><figcaption>{caption}</figcaption>{svg}{drawn}</svg></figure>"))
}

fn row(svg: &mut String, scale: &Axis, figure: &Summary, index: usize, y: f64) {
    let class = colour(index);
    let every = figure.values.len().div_ceil(DOTS).max(1);
    for (number, value) in figure.values.iter().step_by(every).enumerate().filter(|(_, value)| **value > 0.0) {
        // Spread vertically, so that equal values are visible; deterministic.
        let spread = f64::from(u32::try_from(number * 7 % 13).unwrap_or_default()) / 12.0;
        let (x, y) = (scale.place(*value), y + 14.0 + spread * 14.0);
        write!(svg, "<circle class=\"value {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"/>").ok();
    }
    let [low, high] = [10, 90].map(|percent| percentile(&figure.values, percent).unwrap_or_default());
    let middle = median(&figure.values).unwrap_or_default();
    let [from, to, x] = [low, high, middle].map(|value| scale.place(value));
    let right = x < f64::midpoint(LEFT, RIGHT);
    let (anchor, at) = if right { ("start", x + 5.0) } else { ("end", x - 5.0) };
    write!(
        svg,
        "<rect class=\"box {class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"18\" rx=\"3\"/>\
         <line class=\"middle {class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
         <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
        y + 12.0,
        (to - from).max(1.0),
        y + 1.0,
        y + 31.0,
        y + 10.0,
        short(middle)
    )
    .ok();
}
