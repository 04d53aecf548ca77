//! Prints a list of images as table, IDs or JSON.

use std::io::{self, Write};

use cri_api::v1::Image;
use indicatif::HumanBytes;
use serde_json::json;

/// Number of digits of a short ID.
const SHORT: usize = 12;

/// How a list is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableFormat {
    Table,
    Ids,
    Json,
}

pub(crate) fn list(images: &[Image], form: TableFormat, out: &mut impl Write) -> io::Result<()> {
    match form {
        TableFormat::Ids => images.iter().try_for_each(|image| writeln!(out, "{}", image.id)),
        TableFormat::Json => {
            let one = |image: &Image| {
                json!({
                    "id": image.id, "tags": image.repo_tags, "digests": image.repo_digests,
                    "size": image.size, "pinned": image.pinned,
                })
            };
            let all: Vec<_> = images.iter().map(one).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&all)?)
        }
        TableFormat::Table => table(images, out),
    }
}

/// Prints one line for each tag or digest.
fn table(images: &[Image], out: &mut impl Write) -> io::Result<()> {
    let mut rows: Vec<[String; 4]> = Vec::new();
    for image in images {
        let row = |name: &str| {
            let pinned = if image.pinned { "yes" } else { "" };
            [name.to_owned(), short(&image.id).to_owned(), HumanBytes(image.size).to_string(), pinned.to_owned()]
        };
        let names = if image.repo_tags.is_empty() { &image.repo_digests } else { &image.repo_tags };
        match &names[..] {
            [] => rows.push(row("-")),
            names => rows.extend(names.iter().map(|name| row(name))),
        }
    }
    rows.sort();
    let head = ["NAME", "ID", "SIZE", "PINNED"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&head]).map(|row| row[column].len()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2)];
    for [name, id, size, pinned] in [&head].into_iter().chain(&rows) {
        let line = format!("{name:0$}  {id:1$}  {size:>2$}  {pinned}", widths[0], widths[1], widths[2]);
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Returns the short form of an ID.
pub(crate) fn short(id: &str) -> &str {
    let hex = id.strip_prefix("sha256:").unwrap_or(id);
    hex.get(..SHORT).unwrap_or(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(digit: &str, tags: &[&str], size: u64, pinned: bool) -> Image {
        Image {
            id: format!("sha256:{}", digit.repeat(64)),
            repo_tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            size,
            pinned,
            ..Image::default()
        }
    }

    fn text(images: &[Image], form: TableFormat) -> String {
        let mut out = Vec::new();
        list(images, form, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_has_a_line_per_name_in_aligned_columns() {
        let images = [image("a", &["z.io/long/name:1", "b.io/x:1"], 5 << 20, true), image("b", &[], 10, false)];
        let expected = "\
NAME              ID                SIZE  PINNED
-                 bbbbbbbbbbbb      10 B
b.io/x:1          aaaaaaaaaaaa  5.00 MiB  yes
z.io/long/name:1  aaaaaaaaaaaa  5.00 MiB  yes
";
        assert_eq!(text(&images, TableFormat::Table), expected);
        assert_eq!(text(&[], TableFormat::Table), "NAME  ID  SIZE  PINNED\n");
    }

    #[test]
    fn images_are_listed_as_ids_or_json() {
        let images = [image("a", &["b.io/x:1"], 7, false)];
        assert_eq!(text(&images, TableFormat::Ids), format!("sha256:{}\n", "a".repeat(64)));
        let value: serde_json::Value = serde_json::from_str(&text(&images, TableFormat::Json)).unwrap();
        assert_eq!(value[0]["tags"], json!(["b.io/x:1"]));
        assert_eq!((&value[0]["size"], &value[0]["pinned"]), (&json!(7), &json!(false)));
    }
}
