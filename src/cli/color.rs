//! Colours of terminal output, and tables with aligned columns.

use std::io::IsTerminal as _;

/// Whether output to stdout is coloured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Color(bool);

impl Color {
    /// Uses colours on a terminal, unless `NO_COLOR` is set: see <https://no-color.org>.
    pub(super) fn stdout() -> Self {
        Self(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty()))
    }

    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self(false)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(super) fn doubtful(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn faint(self, text: &str) -> String {
        self.with("2", text)
    }
}

/// Aligns rows in columns, two spaces apart, without trailing spaces.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let rows = [["a".to_owned(), "bb".to_owned()], ["ccc→".to_owned(), String::new()]];
        assert_eq!(columns(&rows), ["a     bb", "ccc→"]);
    }

    #[test]
    fn output_without_a_terminal_is_not_coloured() {
        assert_eq!(Color::none().bad("x"), "x");
        assert_eq!(Color(true).good("x"), "\x1b[32mx\x1b[0m");
    }
}
