use super::*;

#[test]
fn a_measurement_survives_serialization() {
    let measured: Measurement = Ok(vec![(READY.to_owned(), 1.5), (TEARDOWN.to_owned(), 0.25)]);
    let text = serde_json::to_string(&measured).unwrap();
    assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), measured);
}

#[test]
fn a_process_with_threads_does_not_fork() {
    // The test runner has several threads.
    assert!(sys::fork::SingleThread::check().is_err());
}
