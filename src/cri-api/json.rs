//! Reads `PodResourceConfig` from JSON.
//!
//! The form is protobuf's JSON with three differences: a quantity is its text, the `type` of a container is required,
//! and values of enums are names. An object has each key once. `build.rs` derives the implementations, which call
//! these functions.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::Quantity;
use crate::v1::MountPropagation;
use crate::v1::container_resource_config::ContainerType;

/// A JSON object. serde also reads a struct from an array of its values; this type rejects that.
#[derive(Debug, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InBraces<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for InBraces<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        from.deserialize_map(InBraces(PhantomData)).map(Self)
    }
}

pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(from)?.map(|Object(one)| one))
}

pub(crate) fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Object<T>>::deserialize(from)?.into_iter().map(|Object(one)| one).collect())
}

/// Reads a map and rejects duplicate keys; serde would silently keep the last one.
pub(crate) fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct EachOnce;

    impl<'de> Visitor<'de> for EachOnce {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with string values")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some((name, text)) = entries.next_entry::<String, String>()? {
                if all.contains_key(&name) {
                    return Err(A::Error::custom(format_args!("duplicate key {name:?}")));
                }
                all.insert(name, text);
            }
            Ok(all)
        }
    }

    from.deserialize_map(EachOnce)
}

pub(crate) fn quantities<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Quantity>, D::Error> {
    Ok(texts(from)?.into_iter().map(|(name, string)| (name, Quantity { string })).collect())
}

pub(crate) fn container_type<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    named(from, ContainerType::from_str_name, &["INIT_CONTAINER", "CONTAINER"])
}

pub(crate) fn propagation<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    let names = &["PROPAGATION_PRIVATE", "PROPAGATION_HOST_TO_CONTAINER", "PROPAGATION_BIDIRECTIONAL"];
    named(from, MountPropagation::from_str_name, names)
}

/// Reads the name of an enum's value.
fn named<'de, D: Deserializer<'de>, T: Into<i32>>(
    from: D,
    value: fn(&str) -> Option<T>,
    names: &'static [&'static str],
) -> Result<i32, D::Error> {
    let name = String::deserialize(from)?;
    value(&name).map(T::into).ok_or_else(|| D::Error::unknown_variant(&name, names))
}
