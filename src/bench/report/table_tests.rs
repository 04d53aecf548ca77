use super::*;
use crate::report::tests::example;

fn lines() -> Vec<String> {
    let mut out = Vec::new();
    print(&mut out, &example()).unwrap();
    String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_row_has_percentiles_and_the_ratio_with_its_interval() {
    let lines = lines();
    let row = lines.iter().find(|line| line.starts_with("pod + container ready")).unwrap();
    let words: Vec<&str> = row["pod + container ready".len()..].split_whitespace().collect();
    assert_eq!((words[0], words[1], words[3], words[4]), ("ms", "9.95", "-", "199"), "{row}");
    assert_eq!(words[7], "0.050", "{row}");
    assert!(words[8].starts_with('[') && words[9].ends_with(']'), "{row}");
}

#[test]
fn errors_growth_and_budgets_are_printed() {
    let lines = lines();
    assert!(lines.iter().any(|line| line.starts_with("crisp: RunPodSandbox: 2 times, first: Internal")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("pod + container ready, the <peer>") && line.contains("11.9")));
    let budgets = lines.iter().position(|line| line.starts_with("budgets: ")).unwrap();
    assert!(lines[budgets + 1].contains("≤ 0.071 of the <peer>") && lines[budgets + 1].contains("met"), "{lines:#?}");
    assert!(lines[budgets + 1].contains("kernel alone"));
}
