use super::*;

fn places(count: usize) -> Arc<Places> {
    Arc::new(Places::new(count))
}

/// Takes a place for a layer whose decoder needs little memory.
async fn small(places: &Arc<Places>, registry: &str) -> Place {
    let place = places.take(registry, registry).await;
    place.transfer.is_small();
    place
}

async fn within(times: u32, waits: impl Future<Output = Place>) -> Option<Place> {
    tokio::time::timeout(PATIENCE * times, waits).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_registry_with_all_places_yields_one_to_another_and_continues() {
    let places = places(2);
    let (one, two) = (small(&places, "slow").await, small(&places, "slow").await);
    assert!(within(20, places.take("slow", "x")).await.is_none(), "its own layers wait");
    let other = within(3, places.take("good", "x")).await.unwrap();
    assert!(one.transfer.is_beside() != two.transfer.is_beside());
    assert!(!one.transfer.broken_off.load(Relaxed) && !two.transfer.broken_off.load(Relaxed));
    // Each has one now, which is fair.
    assert!(within(20, places.take("slow", "x")).await.is_none());
    drop(other);
    assert!(within(1, places.take("good", "x")).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn as_many_registries_as_places_do_not_block_another_registry() {
    let places = places(2);
    let mut held = Vec::new();
    for number in 0..2 + BESIDE_MAX {
        let registry = format!("slow-{number}");
        held.push(within(3, small(&places, &registry)).await.unwrap());
    }
    // No more downloads can continue beside the places: the next request aborts one without
    // progress.
    let waits = tokio::spawn({
        let places = places.clone();
        async move { places.take("good", "x").await }
    });
    let broken = async {
        let mut all = tokio::task::JoinSet::new();
        for place in &held {
            let transfer = place.transfer.clone();
            all.spawn(async move { (transfer.broken_off().await, transfer.number) });
        }
        all.join_next().await.unwrap().unwrap()
    };
    let (rate, number) = tokio::time::timeout(PATIENCE * 4, broken).await.unwrap();
    assert_eq!(rate, 0);
    held.retain(|place| place.transfer.number != number);
    assert!(tokio::time::timeout(PATIENCE * 4, waits).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_download_with_a_large_decoder_is_aborted_only_while_it_is_slow() {
    let places = places(1);
    let held = places.take("a", "a").await;
    let transfer = held.transfer.clone();
    // Four times the initial minimum rate.
    let feeding = tokio::spawn(async move {
        loop {
            transfer.came(RATE_MIN * 4 / 10);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(within(3, places.take("b", "b")).await.is_none());
    assert!(!held.transfer.broken_off.load(Relaxed));
    // The minimum rate grows with the time that another one waits.
    let wait = tokio::spawn({
        let places = places.clone();
        async move { places.take("b", "b").await }
    });
    let rate = tokio::time::timeout(PATIENCE * 8, held.transfer.broken_off()).await.unwrap();
    assert!(rate > RATE_MIN, "{rate}");
    drop(held);
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok());
    feeding.abort();
}

#[tokio::test(start_paused = true)]
async fn the_registry_with_the_fewest_places_is_first_and_dropped_waiters_are_removed() {
    let places = places(2);
    let (one, _two) = (small(&places, "a").await, small(&places, "b").await);
    let mut given_up = Box::pin(places.take("c", "c"));
    let mut first = Box::pin(places.take("a", "a"));
    let mut second = Box::pin(places.take("d", "d"));
    for waits in [&mut given_up, &mut first, &mut second] {
        assert!(tokio::time::timeout(Duration::from_millis(1), waits).await.is_err());
    }
    drop(given_up);
    drop(one);
    let place = tokio::select! { place = &mut first => place, place = &mut second => place };
    // Neither has a place, so the first to wait is next.
    assert_eq!(place.transfer.registry, "a");
    assert_eq!(places.bytes_of("a"), Some(0));
    assert_eq!(places.bytes_of("d"), None);
    drop((first, second, place));
    assert!(places.state.lock().waiting.is_empty());
}
