use super::*;

#[test]
fn what_is_told_of_a_life_comes_over_whole() {
    let told: Measurement = Ok(vec![(READY.to_owned(), 1.5), (TEARDOWN.to_owned(), 0.25)]);
    let text = serde_json::to_string(&told).unwrap();
    assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), told);
}

#[test]
fn a_process_with_threads_does_not_fork() {
    // The test runner has several.
    assert!(sys::fork::SingleThread::check().is_err());
}
