//! Comments of the configuration file, with the setting that each explains.

pub(super) fn find(content: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut section = String::new();
    let mut comment: Option<(usize, Vec<&str>)> = None;
    for (number, line) in content.lines().enumerate() {
        if let Some(words) = line.strip_prefix('#') {
            comment.get_or_insert((number + 1, Vec::new())).1.push(words.trim());
            continue;
        }
        let Some((first, words)) = comment.take() else {
            if line.starts_with('[') {
                section = format!("{line} ");
            }
            continue;
        };
        if line.starts_with('[') {
            section = format!("{line} ");
            found.push((first, format!("crisp.toml: {line}: {}", words.join(" "))));
        } else {
            let setting = if line.is_empty() { String::new() } else { format!("{section}{line}: ") };
            found.push((first, format!("crisp.toml: {setting}{}", words.join(" "))));
        }
    }
    found
}
