//! Line charts of figures by number of pods.

use std::fmt::Write as _;

use super::axis::Axis;
use super::{colour, escape, short};
use crate::report::results::Unit;
use crate::report::statistics::{median, percentile};
use crate::report::{Measured, Report};

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 326.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 164.0;

/// A point of a line.
struct Point {
    pods: f64,
    low: f64,
    middle: f64,
    high: f64,
}

pub(super) fn all(report: &Report) -> String {
    let mut names: Vec<(&str, Unit)> = Vec::new();
    for figure in report.runtimes.iter().flat_map(|runtime| &runtime.growth).flat_map(|step| &step.figures) {
        if !names.iter().any(|(name, _)| *name == figure.name) {
            names.push((&figure.name, figure.unit));
        }
    }
    let drawn: String = names.into_iter().filter_map(|(name, unit)| chart(report, name, unit)).collect();
    if drawn.is_empty() { drawn } else { format!("<div class=\"grid\">{drawn}</div>") }
}

fn curve(runtime: &Measured, name: &str) -> Vec<Point> {
    let points = runtime.growth.iter().filter_map(|step| {
        let values = &step.figure(name)?.values;
        let pods = f64::from(u32::try_from(step.pods).ok()?);
        Some(Point { pods, low: percentile(values, 10)?, middle: median(values)?, high: percentile(values, 90)? })
    });
    points.collect()
}

fn chart(report: &Report, name: &str, unit: Unit) -> Option<String> {
    let curves: Vec<(usize, Vec<Point>)> =
        report.runtimes.iter().map(|runtime| curve(runtime, name)).enumerate().filter(|(_, c)| !c.is_empty()).collect();
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let across = Axis::linear(points().map(|point| point.pods), LEFT, RIGHT)?;
    let up = Axis::linear(points().map(|point| point.high), BOTTOM, TOP)?;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"growth\">");
    for tick in up.ticks(6) {
        let y = up.place(tick);
        write!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            LEFT - 6.0,
            y + 4.0
        )
        .ok();
    }
    for tick in across.ticks(6) {
        let x = across.place(tick);
        write!(svg, "<text class=\"dim\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>", BOTTOM + 16.0)
            .ok();
    }
    for (index, curve) in &curves {
        draw(&mut svg, curve, &across, &up, colour(*index));
    }
    svg.push_str("</svg>");
    let caption = format!("{} <span class=\"dim\">{}, by pods</span>", escape(name), unit.label());
    Some(format!("<figure><figcaption>{caption}</figcaption>{svg}</figure>"))
}

fn draw(svg: &mut String, curve: &[Point], across: &Axis, up: &Axis, class: &str) {
    let at = |pods: f64, value: f64| format!("{:.1},{:.1}", across.place(pods), up.place(value));
    let upper = curve.iter().map(|point| at(point.pods, point.high));
    let lower = curve.iter().rev().map(|point| at(point.pods, point.low));
    let band: Vec<String> = upper.chain(lower).collect();
    let path: Vec<String> = curve.iter().map(|point| at(point.pods, point.middle)).collect();
    write!(
        svg,
        "<polygon class=\"band {class}\" points=\"{}\"/><polyline class=\"{class} path\" style=\"fill:none\" points=\"{}\"/>",
        band.join(" "),
        path.join(" ")
    )
    .ok();
    for point in curve {
        let (x, y) = (across.place(point.pods), up.place(point.middle));
        let title = format!("{} pods: {}", point.pods, short(point.middle));
        write!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{title}</title></circle>")
            .ok();
    }
}
