use super::*;
use crate::tests::fake::Fake;

fn pair() -> (Connection, mpsc::Receiver<Arrived>, Fake) {
    let (one, two) = UnixStream::pair().unwrap();
    let (connection, requests) = Connection::start(one);
    (connection, requests, Fake::over(two))
}

fn call(payload: Vec<u8>) -> Call<'static> {
    Call { method: "Test", payload, timeout: Duration::from_secs(1), traceparent: None }
}

#[tokio::test]
async fn answers_reach_their_calls_in_any_order_and_a_second_one_is_dropped() {
    let (connection, _requests, mut plugin) = pair();
    let mut first = connection.send(call(vec![1])).await.unwrap();
    let mut second = connection.send(call(vec![2])).await.unwrap();
    let (one, two) = (plugin.call().await, plugin.call().await);
    assert_eq!((one.stream, two.stream), (1, 3));
    let answer = |text: &str| Status { code: 0, message: text.to_owned() };
    plugin.answer(&two, &answer("two")).await;
    plugin.answer(&two, &answer("again")).await;
    plugin.refuse(&one, 5, "gone").await;
    assert_eq!(Status::decode(&second.wait().await.unwrap()[..]).unwrap().message, "two");
    let refused = CallError::Refused { code: 5, message: "gone".to_owned() };
    assert_eq!(first.wait().await, Err(refused));
}

#[tokio::test]
async fn a_message_above_the_limit_is_not_sent_and_the_connection_stays() {
    let (connection, _requests, mut plugin) = pair();
    let refused = connection.send(call(vec![0; MESSAGE_MAX])).await.unwrap_err();
    assert!(matches!(refused, CallError::TooLarge(_)), "{refused}");
    let largest = vec![7; MESSAGE_MAX - 100];
    let sent = async { connection.send(call(largest)).await.unwrap() };
    let (mut answer, received) = tokio::join!(sent, plugin.call());
    assert_eq!(received.request.payload.len(), MESSAGE_MAX - 100);
    plugin.answer(&received, &Status::default()).await;
    answer.wait().await.unwrap();
}

#[tokio::test]
async fn calls_fail_when_the_plugin_closes_the_connection() {
    let (connection, _requests, plugin) = pair();
    let mut answer = connection.send(call(Vec::new())).await.unwrap();
    drop(plugin);
    // Which of the two depends on whether the plugin had read the call.
    let error = answer.wait().await.unwrap_err();
    assert!(matches!(error, CallError::Closed(CloseReason::ByPlugin | CloseReason::Io(_))), "{error}");
    assert!(matches!(connection.send(call(Vec::new())).await, Err(CallError::Closed(_))));
}

#[tokio::test]
async fn a_dropped_connection_is_closed_for_the_plugin() {
    let (connection, _requests, mut plugin) = pair();
    drop(connection);
    plugin.is_closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_never_complete_ends_the_connection() {
    let (connection, _requests, mut plugin) = pair();
    plugin.raw(&[0, 0, 0, 1, 0, 0, 0, 1, 0]).await;
    assert_eq!(connection.closed().await, CloseReason::Incomplete);
}

#[test]
fn texts_of_plugins_are_short_and_on_one_line() {
    assert_eq!(bounded("a\nb\x1b[31m"), "a b [31m");
    assert_eq!(bounded(&"ä".repeat(2000)).chars().count(), TEXT_MAX);
}
