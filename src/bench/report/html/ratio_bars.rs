//! Bar charts of ratios; bars begin at 1.

use std::fmt::Write as _;

use super::axis::Axis;
use super::escape;
use crate::report::table::{better, ratio_text};
use crate::report::{Comparison, Report};

const WIDTH: f64 = 1040.0;
/// Horizontal range of the bars; names are on the left, numbers on the right.
const LEFT: f64 = 290.0;
const RIGHT: f64 = 850.0;
const ROW: f64 = 22.0;

/// Returns one chart for each compared runtime.
pub(super) fn ratios(report: &Report) -> String {
    let Some((ours, others)) = report.runtimes.split_first() else { return String::new() };
    let mut all = String::new();
    for other in others {
        let rows: Vec<&Comparison> = report.comparisons.iter().filter(|found| found.to == other.name).collect();
        if !rows.is_empty() {
            write!(all, "<h3>{} / {}</h3>{}", escape(&ours.name), escape(&other.name), drawing(report, &rows)).ok();
        }
    }
    all
}

fn drawing(report: &Report, rows: &[&Comparison]) -> String {
    let limits = rows.iter().filter_map(|row| limit(report, row));
    let values = rows.iter().flat_map(|row| [row.ratio.low, row.ratio.high]).chain(limits).chain([1.0]);
    let Some(scale) = Axis::logarithmic(values, LEFT, RIGHT) else { return String::new() };
    let mut height = 26.0;
    let mut drawn = String::new();
    for row in rows {
        bar(&mut drawn, report, row, &scale, height);
        height += ROW;
    }
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"ratios\">");
    for tick in scale.ticks(10) {
        let x = scale.place(tick);
        let class = if (tick - 1.0).abs() < f64::EPSILON { "one" } else { "axis" };
        write!(
            svg,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"18\" y2=\"{height}\"/>\
             <text class=\"dim\" x=\"{x:.1}\" y=\"12\" text-anchor=\"middle\">{}</text>",
            tick_text(tick)
        )
        .ok();
    }
    svg.push_str(&drawn);
    svg.push_str("</svg>");
    svg
}

/// Formats a tick as budgets are written: 1/8, not 0.125.
fn tick_text(tick: f64) -> String {
    if tick < 0.95 { format!("1/{}", (10.0 / tick).round() / 10.0) } else { format!("{tick}×") }
}

fn bar(svg: &mut String, report: &Report, row: &Comparison, scale: &Axis, y: f64) {
    let unit = report.names().iter().find(|(name, _)| *name == row.figure).map(|(_, unit)| *unit);
    let good = (row.ratio.ratio > 1.0) == unit.is_some_and(|unit| unit.more_is_better());
    let class = if good { "good" } else { "bad" };
    let [one, end] = [1.0, row.ratio.ratio].map(|value| scale.place(value));
    let (x, width) = (one.min(end), (one - end).abs().max(0.5));
    let middle = y + ROW / 2.0;
    let [low, high] = [row.ratio.low, row.ratio.high].map(|value| scale.place(value));
    let hint = unit.map(better).unwrap_or_default();
    write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}<title>{hint}</title></text>\
         <rect class=\"bar {class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"2\"/>\
         <line class=\"whisker\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>",
        LEFT - 10.0,
        middle + 4.0,
        escape(&row.figure),
        y + 4.0,
        ROW - 8.0,
    )
    .ok();
    for end in [low, high] {
        write!(
            svg,
            "<line class=\"whisker\" x1=\"{end:.1}\" x2=\"{end:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
            middle - 4.0,
            middle + 4.0
        )
        .ok();
    }
    if let Some(limit) = limit(report, row) {
        let x = scale.place(limit);
        let (top, bottom) = (middle - 6.0, middle + 6.0);
        let points =
            format!("{x:.1},{top:.1} {:.1},{middle:.1} {x:.1},{bottom:.1} {:.1},{middle:.1}", x + 5.0, x - 5.0);
        write!(
            svg,
            "<polygon class=\"limit\" points=\"{points}\"><title>budget {}</title></polygon>",
            ratio_text(limit)
        )
        .ok();
    }
    let text =
        format!("{} [{}, {}]", ratio_text(row.ratio.ratio), ratio_text(row.ratio.low), ratio_text(row.ratio.high));
    write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{text}</text>", RIGHT + 12.0, middle + 4.0).ok();
}

fn limit(report: &Report, row: &Comparison) -> Option<f64> {
    report.budgets.iter().find(|verdict| verdict.is_about(&row.figure, &row.to)).map(|verdict| verdict.limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_formatted_as_budgets() {
        let written = [0.001, 0.01, 0.05, 0.2, 0.5, 1.0, 20.0].map(tick_text);
        assert_eq!(written, ["1/1000", "1/100", "1/20", "1/5", "1/2", "1×", "20×"]);
    }
}
