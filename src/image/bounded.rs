//! Lists and maps of JSON documents that keep a bounded number of items, whatever the document has.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The first `N` items of a list, and the number of all.
#[derive(Debug, Clone)]
pub(crate) struct List<T, const N: usize> {
    items: Vec<T>,
    count: usize,
}

/// The first `N` entries of a map, and the number of all.
#[derive(Debug, Clone)]
pub(crate) struct Map<T, const N: usize> {
    entries: BTreeMap<String, T>,
    count: usize,
}

impl<T, const N: usize> List<T, N> {
    /// All items, or the number of them where that is more than `N`.
    pub(crate) fn all(self) -> Result<Vec<T>, usize> {
        if self.count > N { Err(self.count) } else { Ok(self.items) }
    }
}

impl<T, const N: usize> Map<T, N> {
    /// All entries, or the number of them where that is more than `N`.
    pub(crate) fn all(self) -> Result<BTreeMap<String, T>, usize> {
        if self.count > N { Err(self.count) } else { Ok(self.entries) }
    }
}

impl<T, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self { items: Vec::new(), count: 0 }
    }
}

impl<T, const N: usize> Default for Map<T, N> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), count: 0 }
    }
}

impl<'de, T: DeserializeOwned, const N: usize> Deserialize<'de> for List<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const N: usize>(PhantomData<T>);
        impl<'de, T: DeserializeOwned, const N: usize> Visitor<'de> for Items<T, N> {
            type Value = List<T, N>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
                let mut list = List::default();
                while list.items.len() < N {
                    let Some(item) = all.next_element()? else { break };
                    list.items.push(item);
                }
                list.count = list.items.len();
                while all.next_element::<IgnoredAny>()?.is_some() {
                    list.count += 1;
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

impl<'de, T: DeserializeOwned, const N: usize> Deserialize<'de> for Map<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T, const N: usize>(PhantomData<T>);
        impl<'de, T: DeserializeOwned, const N: usize> Visitor<'de> for Entries<T, N> {
            type Value = Map<T, N>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
                let mut map = Map::default();
                while map.entries.len() < N {
                    let Some((key, value)) = all.next_entry()? else { break };
                    map.entries.insert(key, value);
                }
                map.count = map.entries.len();
                while all.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    map.count += 1;
                }
                Ok(map)
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_or_map_keeps_its_bound_and_counts_the_rest() {
        let list = |json| serde_json::from_str::<List<u8, 2>>(json).unwrap().all();
        assert_eq!(list("[]"), Ok(vec![]));
        assert_eq!(list("[1,2]"), Ok(vec![1, 2]));
        assert_eq!(list(r#"[1,2,{"not":"a number"},4]"#), Err(4));
        let map = |json| serde_json::from_str::<Map<u8, 2>>(json).unwrap().all();
        assert_eq!(map(r#"{"a":1,"b":2}"#), Ok([("a".to_owned(), 1), ("b".to_owned(), 2)].into()));
        assert_eq!(map(r#"{"a":1,"a":2,"b":2}"#), Ok([("a".to_owned(), 2), ("b".to_owned(), 2)].into()));
        assert_eq!(map(r#"{"a":1,"b":2,"c":[]}"#), Err(3));
    }
}
