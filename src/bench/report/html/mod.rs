//! A page with everything in it: tables, and plots as SVG. It asks nobody for anything else, so it can be kept and sent.
//!
//! All of it is well-formed XML as well, which a test relies on.

mod axis;
mod dot_plot;
mod line_chart;
mod ratio_bars;
mod tables;

use std::fmt::Write as _;

use super::Report;

const STYLE: &str = include_str!("style.css");

/// Colours of the runtimes, in their order: ours first.
const COLOURS: [&str; 5] = ["c0", "c1", "c2", "c3", "c4"];

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Text that stands for itself.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // Nothing else below is allowed in XML.
            '\t' | '\n' => safe.push(' '),
            letter if letter.is_control() => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

/// A number with as many places as say something.
fn short(value: f64) -> String {
    match value.abs() {
        big if big >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 0.1 || small == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A section, unless there is nothing in it.
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
        "What crisp promises, and what was measured here with its interval of 95 % confidence. A question mark: the interval holds the limit.",
        &tables::budgets(report),
    );
    section(
        &mut page,
        "Ratios",
        "Medians of the first runtime divided by those of the other, on a logarithmic scale, with intervals of 95 % confidence (bootstrap). \
         Green is better than the other; a diamond is the budget.",
        &ratio_bars::ratios(report),
    );
    section(
        &mut page,
        "Distributions",
        "Every value that was measured, one dot each; the box holds the middle 80 %, the line is the median. Scales are logarithmic.",
        &dot_plot::all(report),
    );
    section(
        &mut page,
        "Growth",
        "Medians with more and more pods; the bands hold the middle 80 %.",
        &line_chart::all(report),
    );
    section(
        &mut page,
        "The kernel alone",
        "The same steps by bare system calls, without a runtime: no figure can be below these.",
        &tables::floor(report),
    );
    section(&mut page, "All figures", "", &tables::figures(report));
    section(&mut page, "Errors", "Steps that failed; they have no value above.", &tables::errors(report));
    page.push_str("</main></body></html>\n");
    page
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
