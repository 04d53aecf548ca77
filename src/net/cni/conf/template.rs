//! Renders templates of network configurations: the part of Go templates that containerd's use.
//!
//! Supported are `.PodCIDR`, `.PodCIDRRanges` and `.Routes`; `range` with up to two variables,
//! `if`, `else` and `end`; variables, `.` and `$`; comments; and the hyphens that trim spaces.
//! Anything else is an error with its line.

use std::collections::HashMap;

use super::cidr::Cidr;

/// An invalid template.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} of the CNI template: {what}")]
pub struct TemplateError {
    pub line: usize,
    pub what: String,
}

/// Renders `template` for these ranges, of which there is at least one.
pub(crate) fn render(template: &str, cidrs: &[Cidr]) -> Result<String, TemplateError> {
    let ranges: Vec<_> = cidrs.iter().map(Cidr::to_string).collect();
    let has = |v4| cidrs.iter().any(|cidr| cidr.first.is_ipv4() == v4);
    let routes = [("0.0.0.0/0", true), ("::/0", false)].into_iter().filter(|(_, v4)| has(*v4));
    let routes: Vec<_> = routes.map(|(route, _)| route.to_owned()).collect();
    let first = ranges.first().map(String::as_str).unwrap_or_default();
    let root = Root { pod_cidr: first, ranges: &ranges, routes: &routes };
    let nodes = Parser { pieces: split(template)?.into_iter(), depth: 0 }.parse()?;
    let mut text = String::new();
    Scope { root: &root, dot: Data::Root, variables: HashMap::new() }.write(&nodes, &mut text)?;
    Ok(text)
}

fn wrong(line: usize, what: impl Into<String>) -> TemplateError {
    TemplateError { line, what: what.into() }
}

/// The maximum nesting of blocks.
const DEPTH_MAX: usize = 32;

struct Piece<'a> {
    line: usize,
    kind: PieceKind<'a>,
}

enum PieceKind<'a> {
    Text(&'a str),
    Action(&'a str),
}

/// Text and actions in turn, without the spaces that hyphens take away.
fn split(template: &str) -> Result<Vec<Piece<'_>>, TemplateError> {
    let mut pieces = Vec::new();
    let (mut rest, mut line, mut trim) = (template, 1, false);
    loop {
        let (text, action) = match rest.split_once("{{") {
            Some((text, action)) => (text, Some(action)),
            None => (rest, None),
        };
        let start = line;
        line += text.matches('\n').count();
        let mut shown = if trim { text.trim_start() } else { text };
        let Some(action) = action else {
            pieces.push(Piece { line: start, kind: PieceKind::Text(shown) });
            return Ok(pieces);
        };
        let (mut action, behind) = action.split_once("}}").ok_or_else(|| wrong(line, "action without }}"))?;
        let newlines = action.matches('\n').count();
        if let Some(inner) = action.strip_prefix('-').filter(|inner| inner.starts_with(char::is_whitespace)) {
            shown = shown.trim_end();
            action = inner;
        }
        trim = false;
        if let Some(inner) = action.strip_suffix('-').filter(|inner| inner.ends_with(char::is_whitespace)) {
            trim = true;
            action = inner;
        }
        pieces.push(Piece { line: start, kind: PieceKind::Text(shown) });
        pieces.push(Piece { line, kind: PieceKind::Action(action.trim()) });
        line += newlines;
        rest = behind;
    }
}

enum Node<'a> {
    Text(&'a str),
    Value(usize, Path<'a>),
    If { line: usize, condition: Path<'a>, body: Vec<Node<'a>>, otherwise: Vec<Node<'a>> },
    Range { line: usize, variables: Vec<&'a str>, over: Path<'a>, body: Vec<Node<'a>>, otherwise: Vec<Node<'a>> },
}

/// Where a value is found.
#[derive(Clone, Copy)]
enum Path<'a> {
    Dot,
    Root,
    /// Of what the dot is.
    Field(&'a str),
    RootField(&'a str),
    Variable(&'a str),
}

struct Parser<'a> {
    pieces: std::vec::IntoIter<Piece<'a>>,
    depth: usize,
}

/// The end of a sequence of nodes: a keyword with its line.
enum Stop {
    Else(usize),
    End(usize),
    Nothing,
}

impl<'a> Parser<'a> {
    fn parse(mut self) -> Result<Vec<Node<'a>>, TemplateError> {
        match self.nodes()? {
            (nodes, Stop::Nothing) => Ok(nodes),
            (_, Stop::Else(line)) => Err(wrong(line, "else has no if or range before it")),
            (_, Stop::End(line)) => Err(wrong(line, "end without if or range")),
        }
    }

    fn nodes(&mut self) -> Result<(Vec<Node<'a>>, Stop), TemplateError> {
        let mut nodes = Vec::new();
        while let Some(Piece { line, kind }) = self.pieces.next() {
            let action = match kind {
                PieceKind::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                PieceKind::Action(action) => action,
            };
            if action.starts_with("/*") && action.ends_with("*/") && action.len() >= 4 {
                continue;
            }
            let (word, rest) = action.split_once(char::is_whitespace).unwrap_or((action, ""));
            match (word, rest.trim()) {
                ("end", "") => return Ok((nodes, Stop::End(line))),
                ("else", "") => return Ok((nodes, Stop::Else(line))),
                ("if", condition) => {
                    let condition = path(line, condition)?;
                    let (body, otherwise) = self.block(line)?;
                    nodes.push(Node::If { line, condition, body, otherwise });
                }
                ("range", loop_over) => {
                    let (variables, over) = range(line, loop_over)?;
                    let (body, otherwise) = self.block(line)?;
                    nodes.push(Node::Range { line, variables, over, body, otherwise });
                }
                _ => nodes.push(Node::Value(line, path(line, action)?)),
            }
        }
        Ok((nodes, Stop::Nothing))
    }

    /// Parses the nodes between an `if` or `range` and its `end`.
    fn block(&mut self, line: usize) -> Result<(Vec<Node<'a>>, Vec<Node<'a>>), TemplateError> {
        if self.depth == DEPTH_MAX {
            return Err(wrong(line, "this is nested too deep"));
        }
        self.depth += 1;
        let (body, mut end) = self.nodes()?;
        let mut otherwise = Vec::new();
        if let Stop::Else(_) = end {
            (otherwise, end) = self.nodes()?;
        }
        self.depth -= 1;
        match end {
            Stop::End(_) => Ok((body, otherwise)),
            Stop::Else(line) => Err(wrong(line, "this is the second else")),
            Stop::Nothing => Err(wrong(line, "if or range without end")),
        }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn path(line: usize, text: &str) -> Result<Path<'_>, TemplateError> {
    match text {
        "." => return Ok(Path::Dot),
        "$" => return Ok(Path::Root),
        _ => {}
    }
    let found = text
        .strip_prefix("$.")
        .map(Path::RootField)
        .or_else(|| text.strip_prefix('.').map(Path::Field))
        .or_else(|| text.strip_prefix('$').map(Path::Variable));
    match found {
        Some(path @ (Path::RootField(word) | Path::Field(word) | Path::Variable(word))) if is_word(word) => Ok(path),
        _ => Err(wrong(line, format!("{{{{{text}}}}} is not understood"))),
    }
}

/// `.List`, `$item := .List` or `$index, $item := .List`.
fn range(line: usize, text: &str) -> Result<(Vec<&str>, Path<'_>), TemplateError> {
    let Some((variables, over)) = text.split_once(":=") else { return Ok((Vec::new(), path(line, text)?)) };
    let variables: Vec<_> = variables.split(',').map(|one| one.trim().strip_prefix('$').unwrap_or_default()).collect();
    if variables.len() > 2 || !variables.iter().all(|one| is_word(one)) {
        return Err(wrong(line, format!("{{{{range {text}}}}} is not understood")));
    }
    Ok((variables, path(line, over.trim())?))
}

struct Root<'a> {
    pod_cidr: &'a str,
    ranges: &'a [String],
    routes: &'a [String],
}

#[derive(Clone, Copy)]
enum Data<'a> {
    Root,
    Text(&'a str),
    List(&'a [String]),
    Number(usize),
}

struct Scope<'a> {
    root: &'a Root<'a>,
    dot: Data<'a>,
    variables: HashMap<&'a str, Data<'a>>,
}

impl<'a> Scope<'a> {
    fn write(&self, nodes: &[Node<'a>], text: &mut String) -> Result<(), TemplateError> {
        for node in nodes {
            match node {
                Node::Text(plain) => text.push_str(plain),
                Node::Value(line, path) => match self.find(*line, *path)? {
                    Data::Text(value) => text.push_str(value),
                    Data::Number(value) => text.push_str(&value.to_string()),
                    Data::List(_) => return Err(wrong(*line, "this is a list: it needs a range")),
                    Data::Root => return Err(wrong(*line, "expected a string")),
                },
                Node::If { line, condition, body, otherwise } => {
                    let holds = match self.find(*line, *condition)? {
                        Data::Text(value) => !value.is_empty(),
                        Data::Number(value) => value != 0,
                        Data::List(list) => !list.is_empty(),
                        Data::Root => true,
                    };
                    self.write(if holds { body } else { otherwise }, text)?;
                }
                Node::Range { line, variables, over, body, otherwise } => {
                    let Data::List(list) = self.find(*line, *over)? else {
                        return Err(wrong(*line, "expected a list"));
                    };
                    if list.is_empty() {
                        self.write(otherwise, text)?;
                    }
                    for (index, item) in list.iter().enumerate() {
                        self.at(variables, index, item).write(body, text)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the scope inside of a range.
    fn at(&self, names: &[&'a str], index: usize, item: &'a str) -> Self {
        let mut variables = self.variables.clone();
        match names {
            [name] => drop(variables.insert(name, Data::Text(item))),
            [number, name] => {
                variables.insert(number, Data::Number(index));
                variables.insert(name, Data::Text(item));
            }
            _ => {}
        }
        Self { root: self.root, dot: Data::Text(item), variables }
    }

    fn find(&self, line: usize, path: Path<'a>) -> Result<Data<'a>, TemplateError> {
        let Root { pod_cidr, ranges, routes } = self.root;
        let name = match (path, self.dot) {
            (Path::Dot, dot) => return Ok(dot),
            (Path::Root, _) => return Ok(Data::Root),
            (Path::Variable(name), _) => {
                let known = self.variables.get(name).copied();
                return known.ok_or_else(|| wrong(line, format!("undefined variable ${name}")));
            }
            (Path::RootField(name), _) | (Path::Field(name), Data::Root) => name,
            (Path::Field(name), _) => {
                return Err(wrong(line, format!(".{name} is not defined inside of a range: use $.{name}")));
            }
        };
        match name {
            "PodCIDR" => Ok(Data::Text(pod_cidr)),
            "PodCIDRRanges" => Ok(Data::List(ranges)),
            "Routes" => Ok(Data::List(routes)),
            _ => Err(wrong(line, format!("unknown field .{name}: expected .PodCIDR, .PodCIDRRanges or .Routes"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(template: &str, cidrs: &str) -> Result<String, TemplateError> {
        render(template, &Cidr::parse_all(cidrs).unwrap())
    }

    #[test]
    fn the_templates_of_containerd_are_supported() {
        let template = r#"{"subnet": "{{.PodCIDR}}",
"ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}],
"routes": [{{range $i, $route := .Routes}}{{if $i}}, {{end}}{"dst": "{{$route}}"}{{end}}]}"#;
        let both = r#"{"subnet": "10.0.0.0/24",
"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]],
"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}"#;
        assert_eq!(made(template, "10.0.0.0/24, fd00::/64").unwrap(), both);
        let one = r#"{"subnet": "fd00::/64",
"ranges": [[{"subnet": "fd00::/64"}]],
"routes": [{"dst": "::/0"}]}"#;
        assert_eq!(made(template, "fd00::/64").unwrap(), one);
    }

    #[test]
    fn equivalent_spellings_are_accepted() {
        for (template, text) in [
            ("no action", "no action"),
            ("{{ .PodCIDR }}", "10.0.0.0/24"),
            ("{{range .Routes}}<{{.}}>{{end}}", "<0.0.0.0/0>"),
            ("{{range $r := .Routes}}<{{$r}} {{$.PodCIDR}}>{{end}}", "<0.0.0.0/0 10.0.0.0/24>"),
            ("a {{- /* nothing */ -}} b", "ab"),
            ("a{{/* nothing */}} b", "a b"),
            ("{{if .PodCIDR}}yes{{else}}no{{end}}", "yes"),
            ("{{range $i, $r := .Routes}}{{if $i}}yes{{else}}no{{end}}{{end}}", "no"),
            ("x\n  {{- range .Routes }}\n  {{ . }}\n  {{- end }}\n", "x\n  0.0.0.0/0\n"),
            ("{{range .Routes}}{{range $.PodCIDRRanges}}{{.}}{{end}}{{end}}", "10.0.0.0/24"),
        ] {
            assert_eq!(made(template, "10.0.0.0/24").as_deref(), Ok(text), "{template}");
        }
    }

    #[test]
    fn errors_name_the_unsupported_part_and_its_line() {
        for (template, line, words) in [
            ("\n\n{{.NodeIP}}", 3, "unknown field .NodeIP"),
            ("{{.PodCIDR | printf \"%s\"}}", 1, "not understood"),
            ("{{pod_cidr}}", 1, "{{pod_cidr}} is not understood"),
            ("{{index .PodCIDRRanges 0}}", 1, "not understood"),
            ("\n{{.PodCIDRRanges}}", 2, "needs a range"),
            ("{{range .PodCIDR}}{{end}}", 1, "expected a list"),
            ("{{range .Routes}}{{.PodCIDR}}{{end}}", 1, "use $.PodCIDR"),
            ("{{$x}}", 1, "undefined variable $x"),
            ("{{range $i, $r := .Routes}}{{end}}{{$i}}", 1, "undefined variable $i"),
            ("{{range $a, $b, $c := .Routes}}{{end}}", 1, "not understood"),
            ("x\n{{if .PodCIDR}}\n", 2, "without end"),
            ("{{end}}", 1, "end without if"),
            ("{{else}}", 1, "else has no"),
            ("{{if .PodCIDR}}{{else}}{{else}}{{end}}", 1, "second else"),
            ("{{if .PodCIDR}}{{else if .Routes}}{{end}}", 1, "not understood"),
            ("a\n{{.PodCIDR", 2, "without }}"),
            ("{{}}", 1, "not understood"),
            ("{{$}}", 1, "expected a string"),
        ] {
            let error = made(template, "10.0.0.0/24").unwrap_err();
            assert_eq!(error.line, line, "{template}: {error}");
            assert!(error.what.contains(words), "{template}: {error}");
        }
        let deep = "{{if .PodCIDR}}".repeat(40) + &"{{end}}".repeat(40);
        assert!(made(&deep, "10.0.0.0/24").unwrap_err().what.contains("too deep"));
    }
}
