//! Limits the number of connected clients, shared fairly among pods.

use std::collections::HashMap;
use std::sync::Arc;

use model::PodId;
use sync::Mutex;
use tokio::sync::Notify;

/// At most this many clients are connected. If all places are in use, a pod with fewer clients gets
/// a place of the pod with the most, so that no pod can keep the clients of others out.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    last: u64,
    /// By pod, the newest last.
    pods: HashMap<PodId, Vec<(u64, Arc<Notify>)>>,
}

/// The place of a client, until it is dropped or given to a client of another pod.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    pod: PodId,
    number: u64,
    lost: Arc<Notify>,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// Returns a place for a client of `pod`; `None` if all are in use and no pod has more than
    /// this one would have.
    pub(super) fn take(self: &Arc<Self>, pod: &PodId) -> Option<Place> {
        let mut taken = self.taken.lock();
        if taken.count >= self.most {
            let own = taken.pods.get(pod).map_or(0, Vec::len);
            let most = taken.pods.iter_mut().max_by_key(|(_, places)| places.len());
            let (_, places) = most.filter(|(_, places)| places.len() > own + 1)?;
            // The newest: older clients did not exhaust the places.
            let (_, lost) = places.pop()?;
            lost.notify_one();
            taken.count -= 1;
        }
        taken.count += 1;
        taken.last += 1;
        let (number, lost) = (taken.last, Arc::new(Notify::new()));
        taken.pods.entry(pod.clone()).or_default().push((number, Arc::clone(&lost)));
        Some(Place { places: Arc::clone(self), pod: pod.clone(), number, lost })
    }
}

impl Place {
    /// Waits until the place was given to another client.
    pub(super) async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        let Some(places) = taken.pods.get_mut(&self.pod) else { return };
        let before = places.len();
        places.retain(|(number, _)| *number != self.number);
        let given_back = before - places.len();
        if places.is_empty() {
            taken.pods.remove(&self.pod);
        }
        taken.count -= given_back;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(byte: u8) -> PodId {
        PodId::from_bytes([byte; 32])
    }

    async fn is_lost(place: &Place) -> bool {
        tokio::select! {
            biased;
            () = place.lost() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn a_pod_with_many_clients_gives_places_to_pods_with_fewer() {
        let places = Places::new(4);
        let greedy: Vec<Place> = (0..4).map(|_| places.take(&pod(1)).unwrap()).collect();
        assert!(places.take(&pod(1)).is_none(), "a further request gets none");
        let second = places.take(&pod(2)).unwrap();
        let third = places.take(&pod(3)).unwrap();
        for (place, lost) in greedy.iter().zip([false, false, true, true]) {
            assert_eq!(is_lost(place).await, lost, "the newest go");
        }
        assert!(!is_lost(&second).await && !is_lost(&third).await);
        assert!(places.take(&pod(2)).is_none(), "none has more than it would have");
        drop(greedy);
        assert_eq!(places.taken.lock().count, 2);
        let _more = [places.take(&pod(2)).unwrap(), places.take(&pod(2)).unwrap()];
        let _fourth = places.take(&pod(4)).unwrap();
        assert_eq!(places.taken.lock().count, 4);
    }

    #[test]
    fn freed_places_leave_no_entries() {
        let places = Places::new(2);
        for round in 0..100 {
            drop(places.take(&pod(round)).unwrap());
        }
        let taken = places.taken.lock();
        assert!(taken.count == 0 && taken.pods.is_empty());
    }
}
