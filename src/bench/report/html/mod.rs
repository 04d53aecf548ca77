//! A self-contained HTML page with tables and SVG plots. It loads no other resources.
//!
//! The page is also well-formed XML, which a test checks.

mod axis;
mod dot_plot;
mod line_chart;
mod ratio_bars;
mod tables;

use std::fmt::Write as _;

use super::Report;

const STYLE: &str = include_str!("style.css");

/// CSS classes with the colours of the runtimes, in their order.
const COLOURS: [&str; 5] = ["c0", "c1", "c2", "c3", "c4"];

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // XML allows no other control characters.
            '\t' | '\n' => safe.push(' '),
            letter if letter.is_control() => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

/// Formats a number with three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        big if big >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 0.1 || small == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Writes a section, unless it is empty.
fn section(page: &mut String, title: &str, words: &str, content: &str) {
    if content.is_empty() {
        return;
    }
    write!(page, "<section><h2>{title}</h2><p class=\"hint\">{words}</p>{content}</section>").ok();
}

pub(crate) fn page(report: &Report) -> String {
    let names: Vec<String> = report.runtimes.iter().map(|runtime| escape(&runtime.name)).collect();
    let title = if names.is_empty() { "the kernel alone".to_owned() } else { names.join(" and ") };
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <title>crisp bench: {title}</title><style>{STYLE}</style></head><body><main><header><h1>crisp bench: {title}</h1>{}</header>",
        tables::head(report)
    );
    section(
        &mut page,
        "Budgets",
        "Limits for crisp, and the values measured here with 95 % confidence intervals. A question mark: the interval contains the limit.",
        &tables::budgets(report),
    );
    section(
        &mut page,
        "Ratios",
        "Medians of the first runtime divided by those of the other, on a logarithmic scale, with 95 % confidence intervals (bootstrap). \
         Green: the first runtime is better. Diamond: the budget.",
        &ratio_bars::ratios(report),
    );
    section(
        &mut page,
        "Distributions",
        "All measured values, one dot each. The box contains the middle 80 %, the line is the median. Scales are logarithmic.",
        &dot_plot::all(report),
    );
    section(
        &mut page,
        "Growth",
        "Medians by number of pods. The bands contain the middle 80 %.",
        &line_chart::all(report),
    );
    section(
        &mut page,
        "The kernel alone",
        "The same steps by system calls, without a runtime: lower bounds for every runtime.",
        &tables::floor(report),
    );
    section(&mut page, "All figures", "", &tables::figures(report));
    section(&mut page, "Errors", "Failed steps; they are not included in the values above.", &tables::errors(report));
    page.push_str("</main></body></html>\n");
    page
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
