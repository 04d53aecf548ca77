//! Places of connected clients, shared fairly among pods.

use std::collections::HashMap;
use std::sync::Arc;

use model::PodId;
use sync::Mutex;
use tokio::sync::Notify;

/// At most so many clients are connected. While there is no place left, a pod that has fewer gets one of the pod that has the most:
/// no pod keeps the clients of others out.
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

/// A client's place, until it is dropped or given to another pod's client.
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

    /// A place for a client of `pod`; none where all are taken and no pod has more than this one would have.
    pub(super) fn take(self: &Arc<Self>, pod: &PodId) -> Option<Place> {
        let mut taken = self.taken.lock();
        if taken.count >= self.most {
            let own = taken.pods.get(pod).map_or(0, Vec::len);
            let most = taken.pods.iter_mut().max_by_key(|(_, places)| places.len());
            let (_, places) = most.filter(|(_, places)| places.len() > own + 1)?;
            // The newest: who was there before the others came is not who took all places.
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
    pub(super) fn pod(&self) -> &PodId {
        &self.pod
    }

    /// Ends when the place was given to another.
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
        assert!(places.take(&pod(1)).is_none(), "it gets no more by asking");
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
    fn places_that_are_given_back_leave_nothing_behind() {
        let places = Places::new(2);
        for round in 0..100 {
            drop(places.take(&pod(round)).unwrap());
        }
        let taken = places.taken.lock();
        assert!(taken.count == 0 && taken.pods.is_empty());
    }
}
