//! The sizes that the runtimes of Go, Java and Node.js chose: from arguments, variables, and the Go version in the
//! program's file.

use serde::Serialize;

use super::super::super::units;
use super::proc_files::ProcFiles;

/// The size that a runtime chose at its start.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Sizing {
    /// `Go`, `Java` or `Node.js`.
    pub(super) runtime: &'static str,
    pub(super) version: Option<String>,
    /// None if it is not known, or follows the limit.
    pub(super) cpus: Option<u64>,
    /// Maximum size of the heap in bytes; None if it is not known.
    pub(super) memory: Option<u64>,
    /// The options and variables with these values.
    pub(super) from: Vec<&'static str>,
}

impl Sizing {
    pub(super) fn words(&self) -> String {
        let Self { version, cpus, memory, from, .. } = self;
        let cpus = cpus.map(|cpus| format!("{cpus} CPUs"));
        let memory = memory.map(|bytes| format!("heap {}", units::bytes(bytes)));
        let from = (!from.is_empty()).then(|| format!("by {}", from.join(", ")));
        let parts: Vec<String> = [version.clone(), cpus, memory, from].into_iter().flatten().collect();
        if parts.is_empty() { "sized by its defaults at the start".to_owned() } else { parts.join(", ") }
    }
}

/// Detects the runtime; `seen` is the number of CPUs that the process may use.
pub(super) fn sizing(files: &ProcFiles, seen: Option<u64>) -> Option<Sizing> {
    let program = files.program().unwrap_or_default();
    match program.as_str() {
        "java" => Some(java(&words(files, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))),
        "node" | "nodejs" => Some(node(&words(files, "NODE_OPTIONS", ""))),
        _ => go_version(files).map(|version| go(version, files.variable("GOMAXPROCS").as_deref(), seen)),
    }
}

/// Returns the options of two variables, then the arguments: a later option overrides those before it.
fn words(files: &ProcFiles, first: &str, second: &str) -> Vec<String> {
    let of_variable = |name: &str| files.variable(name).filter(|_| !name.is_empty()).unwrap_or_default();
    let variables = [of_variable(first), of_variable(second)];
    let words = variables.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned);
    // After -jar come the arguments of the program itself.
    words.chain(files.strings("cmdline").into_iter().skip(1).take_while(|word| word != "-jar")).collect()
}

/// Go before 1.25 sets GOMAXPROCS to the CPUs that it sees; later versions follow the limit of the cgroup.
fn go(version: String, gomaxprocs: Option<&str>, seen: Option<u64>) -> Sizing {
    let given = gomaxprocs.and_then(|text| text.parse::<u64>().ok()).filter(|cpus| *cpus > 0);
    let minor = version.strip_prefix("go1.").and_then(|rest| rest.split(['.', 'r', 'b']).next()?.parse::<u32>().ok());
    let follows = minor.is_some_and(|minor| minor >= 25);
    let from = if given.is_some() { vec!["GOMAXPROCS"] } else { Vec::new() };
    Sizing { runtime: "Go", version: Some(version), cpus: given.or(seen.filter(|_| !follows)), memory: None, from }
}

fn java(words: &[String]) -> Sizing {
    let last = |prefix: &str| words.iter().rev().find_map(|word| word.strip_prefix(prefix));
    let memory = last("-Xmx").or(last("-XX:MaxHeapSize=")).and_then(java_size);
    let cpus = last("-XX:ActiveProcessorCount=").and_then(|count| count.parse().ok());
    let from = [memory.map(|_| "-Xmx"), cpus.map(|_: u64| "-XX:ActiveProcessorCount")];
    Sizing { runtime: "Java", version: None, cpus, memory, from: from.into_iter().flatten().collect() }
}

/// Parses a size such as `512m`; without a unit it is in bytes.
fn java_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn node(words: &[String]) -> Sizing {
    // V8 accepts both spellings.
    let options = ["--max-old-space-size=", "--max_old_space_size="];
    let value = |word: &String| options.iter().find_map(|option| word.strip_prefix(option))?.parse::<u64>().ok();
    let memory = words.iter().rev().find_map(value).and_then(|mib| mib.checked_mul(1 << 20));
    let from = if memory.is_some() { vec!["--max-old-space-size"] } else { Vec::new() };
    Sizing { runtime: "Node.js", version: None, cpus: None, memory, from }
}

/// The bytes at the beginning of the data segment that are searched for the build information.
const SEARCHED: usize = 64 << 10;
const MAGIC: &[u8] = b"\xff Go buildinf:";
const VERSION_MAX: usize = 32;

/// Returns the Go version of the program: see debug/buildinfo of Go. Only programs of Go 1.18 or later have the text.
fn go_version(files: &ProcFiles) -> Option<String> {
    let head = files.of_program(0, 4096)?;
    let data = files.of_program(data_offset(&head)?, SEARCHED)?;
    build_version(&data)
}

/// Returns the offset of the first writable segment of a 64-bit little-endian ELF file.
fn data_offset(head: &[u8]) -> Option<u64> {
    let number = |at: usize, size: usize| {
        let bytes = head.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    (0..count).find_map(|index| {
        let at = usize::try_from(table.checked_add(index.checked_mul(size)?)?).ok()?;
        let (kind, flags, offset) = (number(at, 4)?, number(at + 4, 4)?, number(at + 8, 8)?);
        (kind == 1 && flags & 2 != 0).then_some(offset)
    })
}

fn build_version(data: &[u8]) -> Option<String> {
    let found = data.chunks(16).position(|chunk| chunk.starts_with(MAGIC))?;
    let info = data.get(found * 16..)?;
    // With this flag the version follows as a length and its text.
    let inline = info.get(15)? & 2 != 0;
    let length = usize::from(*info.get(32)?);
    if !inline || length > VERSION_MAX {
        return None;
    }
    let text = std::str::from_utf8(info.get(33..33 + length)?).ok()?;
    let legal = text.starts_with("go") && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c));
    legal.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &str) -> Vec<String> {
        words.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn java_is_sized_by_its_last_options() {
        let sized = java(&list("-Xmx64m -cp a.jar -XX:ActiveProcessorCount=3 -Xmx512m Main"));
        assert_eq!((sized.memory, sized.cpus), (Some(512 << 20), Some(3)));
        assert_eq!(sized.words(), "3 CPUs, heap 512Mi, by -Xmx, -XX:ActiveProcessorCount");
        let none = java(&list("-Xmxlots Main"));
        assert_eq!((none.memory, none.cpus, none.words().as_str()), (None, None, "sized by its defaults at the start"));
        for (text, size) in
            [("1g", Some(1 << 30)), ("2048", Some(2048)), ("1x", None), ("99999999999t", None), ("", None)]
        {
            assert_eq!(java_size(text), size, "{text}");
        }
    }

    #[test]
    fn node_is_sized_by_the_limit_of_its_old_space() {
        assert_eq!(node(&list("--max_old_space_size=256 server.js")).memory, Some(256 << 20));
        assert_eq!(node(&list("server.js")).memory, None);
    }

    #[test]
    fn go_is_sized_by_its_variable_or_the_cpus_it_sees() {
        let cpus = |version: &str, variable, seen| go(version.to_owned(), variable, seen).cpus;
        assert_eq!(cpus("go1.22.3", Some("8"), Some(2)), Some(8));
        assert_eq!(cpus("go1.22.3", Some("many"), Some(2)), Some(2));
        assert_eq!(cpus("go1.25rc1", None, Some(2)), None, "follows the limit");
        assert_eq!(cpus("go1.24", None, None), None);
    }

    #[test]
    fn the_go_version_is_found_in_the_data_segment() {
        let mut head = vec![0; 4096];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (head[32], head[54], head[56]) = (64, 56, 2);
        (head[64], head[68]) = (1, 5);
        (head[120], head[124], head[129]) = (1, 6, 0x10);
        assert_eq!(data_offset(&head), Some(0x1000));
        let mut data = vec![0; 256];
        data[64..78].copy_from_slice(MAGIC);
        (data[78], data[79], data[96]) = (8, 2, 6);
        data[97..103].copy_from_slice(b"go1.22");
        assert_eq!(build_version(&data).as_deref(), Some("go1.22"));
        data[98] = 0x1b;
        assert_eq!(build_version(&data), None, "a control character");
        data[96] = 255;
        assert_eq!(build_version(&data), None);
    }

    #[test]
    fn hostile_headers_are_not_followed() {
        for head in [&b""[..], b"\x7fELF", &[0xff; 4096], &[b"\x7fELF\x02\x01".as_slice(), &[0xff; 4090]].concat()] {
            assert_eq!(data_offset(head), None);
        }
    }
}
