use super::*;
use crate::report::tests::example;

/// Checks that tags are closed in order, attributes are quoted, and `&` begins an entity.
fn check(page: &str) {
    let body = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body.trim_end();
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        if open.last() != Some(&"style") {
            for part in text.split('&').skip(1) {
                assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|name| part.starts_with(name)), "{text}");
            }
            assert!(!text.contains('>') && !text.contains("NaN"), "{text}");
        }
        let end = rest[at..].find('>').unwrap() + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{page}");
            continue;
        }
        assert!(tag.matches('"').count().is_multiple_of(2) && !tag.contains("NaN") && !tag.contains("inf"), "{tag}");
        assert!(!tag.contains("src=") && !tag.contains("href=") && !tag.starts_with("script"), "{tag}");
        if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap());
        }
    }
    assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest}");
}

#[test]
fn the_page_is_well_formed_and_loads_no_other_resources() {
    let page = page(&example());
    check(&page);
    for part in ["Budgets", "Ratios", "Distributions", "Growth", "The kernel alone", "All figures", "Errors"] {
        assert!(page.contains(&format!("<h2>{part}</h2>")), "{part}");
    }
    assert!(page.contains("the &lt;peer&gt;") && !page.contains("<peer>") && !page.contains("<broken>"));
    for part in ["1970-01-01T00:00:01Z on node", "crisp bench life --html &lt;file&gt;", "images on tmpfs /var/lib"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http") && !page.contains("@import") && !page.contains("url("));
}

#[test]
fn an_empty_report_gives_a_valid_page() {
    let mut report = example();
    report.runtimes.clear();
    report.floor.clear();
    report.compare_and_check();
    let page = page(&report);
    check(&page);
    assert!(!page.contains("<section>"));
}
