//! The tables of the HTML report: machine and settings, budgets, baseline, measured values, failed
//! steps.

use std::fmt::Write as _;

use super::{colour, escape, short};
use crate::report::statistics::median;
use crate::report::table::{ratio_text, shared};
use crate::report::{Report, Summary};

/// Returns the header: machine, settings and runtimes.
pub(super) fn head(report: &Report) -> String {
    let machine = &report.machine;
    let settings = &report.settings;
    let network = match (settings.same_cni, settings.host_network) {
        (true, _) => "the same CNI plugins for all",
        (false, true) => "the host's network",
        (false, false) => "default network of each runtime",
    };
    let mut head = format!(
        "<p class=\"dim\">{} on {}: {}<br/>Linux {}, {} processors, cgroups {}; {} rounds, {network}; measured with \
         crisp {}</p><div class=\"chips\">",
        escape(&report.date),
        escape(&machine.host),
        escape(&report.command),
        escape(&machine.kernel),
        machine.processors,
        escape(&machine.cgroups),
        settings.rounds,
        escape(report.crisp)
    );
    for (index, runtime) in report.runtimes.iter().enumerate() {
        write!(
            head,
            "<span class=\"chip\"><span class=\"dot {}\"></span><b>{}</b> {} <span class=\"dim\">{} errors; CPU time from \
             {}; {}{}</span></span>",
            colour(index),
            escape(&runtime.name),
            escape(&runtime.version),
            runtime.errors,
            escape(runtime.processor_time_from),
            escape(&runtime.filesystems()),
            shared(runtime)
        )
        .ok();
    }
    head + "</div>"
}

pub(super) fn budgets(report: &Report) -> String {
    if report.budgets.is_empty() {
        return String::new();
    }
    let mut table = "<div class=\"wide\"><table><tr><th>budget</th><th>measured</th><th>interval</th><th>limit</th><th>kernel alone</th>\
                     <th></th></tr>"
        .to_owned();
    for verdict in &report.budgets {
        let class = match (verdict.met, verdict.sure) {
            (true, true) => "met",
            (false, true) => "missed",
            (_, false) => "close",
        };
        let sign = if verdict.at_least { "≥" } else { "≤" };
        let floor = verdict.floor.map(|floor| format!("{:.0} %", floor * 100.0)).unwrap_or_default();
        write!(
            table,
            "<tr><td>{}</td><td>{}</td><td>{} – {}</td><td>{sign} {} {}</td><td>{floor}</td><td class=\"{class}\">{}</td></tr>",
            escape(verdict.what),
            ratio_text(verdict.measured.ratio),
            ratio_text(verdict.measured.low),
            ratio_text(verdict.measured.high),
            ratio_text(verdict.limit),
            escape(&verdict.of),
            verdict.word()
        )
        .ok();
    }
    table + "</table></div>"
}

pub(super) fn floor(report: &Report) -> String {
    if report.floor.is_empty() {
        return String::new();
    }
    let mut table =
        "<div class=\"wide\"><table><tr><th></th><th>unit</th><th>p50</th><th>p90</th><th>runtime, p50</th></tr>"
            .to_owned();
    for figure in &report.floor {
        let ours = report.runtimes.first().and_then(|ours| median(ours.values(&figure.name)));
        write!(
            table,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&figure.name),
            figure.unit.label(),
            number(figure.p50),
            number(figure.p90),
            number(ours)
        )
        .ok();
    }
    table + "</table></div>"
}

pub(super) fn figures(report: &Report) -> String {
    let names = report.names();
    if names.is_empty() {
        return String::new();
    }
    let mut table = "<div class=\"wide\"><table><tr><th></th><th>unit</th>".to_owned();
    for runtime in &report.runtimes {
        let name = escape(&runtime.name);
        write!(table, "<th>{name} p50</th><th>p90</th><th>p99</th><th>n</th><th>errors</th>").ok();
    }
    table.push_str("</tr>");
    for (name, unit) in names {
        write!(table, "<tr><td>{}</td><td>{}</td>", escape(name), unit.label()).ok();
        for runtime in &report.runtimes {
            let figure = runtime.figure(name);
            let percentiles = figure.map_or([None; 3], |figure| [figure.p50, figure.p90, figure.p99]);
            for value in percentiles {
                write!(table, "<td>{}</td>", number(value)).ok();
            }
            let (count, errors) = figure.map_or((0, 0), |figure| (figure.count, figure.errors));
            write!(table, "<td>{count}</td><td{}>{errors}</td>", if errors > 0 { " class=\"missed\"" } else { "" })
                .ok();
        }
        table.push_str("</tr>");
    }
    table + "</table></div>"
}

pub(super) fn errors(report: &Report) -> String {
    let mut rows = String::new();
    for runtime in &report.runtimes {
        let growth = runtime.growth.iter().flat_map(|step| &step.figures);
        for Summary { name, errors, first_error, .. } in runtime.figures.iter().chain(growth).filter(|f| f.errors > 0) {
            let why = escape(first_error.as_deref().unwrap_or_default());
            let (runtime, name) = (escape(&runtime.name), escape(name));
            write!(rows, "<tr><td>{runtime}: {name}</td><td>{errors}</td><td>{why}</td></tr>").ok();
        }
    }
    if rows.is_empty() { rows } else { format!("<div class=\"wide\"><table>{rows}</table></div>") }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), short)
}
