//! JSON for verbose responses, without the form that serde gives to the enums of records: a limit is a number, a user
//! its id or name, and any other variant with content an object with its `type`.

use serde::Serialize;
use serde::ser::{
    Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};
use serde_json::{Error, Map, Value, json};

/// Converts a value of `model` or of a record. Fails only for maps with keys that are not texts.
pub(super) fn plain_json<T: Serialize + ?Sized>(value: &T) -> Result<Value, Error> {
    value.serialize(Plain)
}

/// The number of a limit without a value, as in CRI.
const UNLIMITED: i64 = -1;

fn of_variant(name: &str, variant: &str, content: Value) -> Value {
    match (name, variant, content) {
        ("MemoryLimit" | "CpuQuota" | "UserRef", _, content) => content,
        // The notation of Kubernetes for a profile on the node.
        ("Profile", "Localhost", Value::String(profile)) => Value::String(format!("localhost/{profile}")),
        (_, variant, Value::Object(mut fields)) => {
            fields.insert("type".to_owned(), json!(variant.to_lowercase()));
            Value::Object(fields)
        }
        (_, variant, content) => json!({ "type": variant.to_lowercase(), "value": content }),
    }
}

struct Plain;

/// The elements of a sequence, and the enum and variant that it belongs to, if any.
struct Elements {
    values: Vec<Value>,
    of: Option<(&'static str, &'static str)>,
}

struct Fields {
    values: Map<String, Value>,
    key: Option<String>,
    of: Option<(&'static str, &'static str)>,
}

impl Elements {
    fn new(of: Option<(&'static str, &'static str)>) -> Self {
        Self { values: Vec::new(), of }
    }

    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.values.push(plain_json(value)?);
        Ok(())
    }

    fn finish(self) -> Value {
        let values = Value::Array(self.values);
        match self.of {
            Some((name, variant)) => of_variant(name, variant, values),
            None => values,
        }
    }
}

impl Fields {
    fn new(of: Option<(&'static str, &'static str)>) -> Self {
        Self { values: Map::new(), key: None, of }
    }

    fn insert<T: Serialize + ?Sized>(&mut self, key: String, value: &T) -> Result<(), Error> {
        self.values.insert(key, plain_json(value)?);
        Ok(())
    }

    fn finish(self) -> Value {
        let values = Value::Object(self.values);
        match self.of {
            Some((name, variant)) => of_variant(name, variant, values),
            None => values,
        }
    }
}

/// Forwards methods for values without enums to the serializer of `serde_json`.
macro_rules! scalars {
    ($($method:ident($type:ty)),*) => {
        $(fn $method(self, value: $type) -> Result<Value, Error> {
            serde_json::value::Serializer.$method(value)
        })*
    };
}

impl serde::Serializer for Plain {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Elements;
    type SerializeTuple = Elements;
    type SerializeTupleStruct = Elements;
    type SerializeTupleVariant = Elements;
    type SerializeMap = Fields;
    type SerializeStruct = Fields;
    type SerializeStructVariant = Fields;

    scalars!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_f32(f32),
        serialize_f64(f64),
        serialize_char(char),
        serialize_str(&str),
        serialize_bytes(&[u8]),
        serialize_unit_struct(&'static str)
    );

    fn serialize_none(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        plain_json(value)
    }

    fn serialize_unit(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, name: &'static str, _: u32, variant: &'static str) -> Result<Value, Error> {
        Ok(match (name, variant) {
            ("MemoryLimit" | "CpuQuota", "Unlimited") => json!(UNLIMITED),
            (_, variant) => json!(variant),
        })
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<Value, Error> {
        plain_json(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        Ok(of_variant(name, variant, plain_json(value)?))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Elements, Error> {
        Ok(Elements::new(None))
    }

    fn serialize_tuple(self, _: usize) -> Result<Elements, Error> {
        Ok(Elements::new(None))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Elements, Error> {
        Ok(Elements::new(None))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Elements, Error> {
        Ok(Elements::new(Some((name, variant))))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Fields, Error> {
        Ok(Fields::new(None))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Fields, Error> {
        Ok(Fields::new(None))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields, Error> {
        Ok(Fields::new(Some((name, variant))))
    }
}

/// Implements the traits of sequences, which differ only in the name of a method.
macro_rules! elements {
    ($($trait:ident::$method:ident),*) => {
        $(impl $trait for Elements {
            type Ok = Value;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.push(value)
            }

            fn end(self) -> Result<Value, Error> {
                Ok(self.finish())
            }
        })*
    };
}

elements!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

/// Implements the traits of structs.
macro_rules! fields {
    ($($trait:ident),*) => {
        $(impl $trait for Fields {
            type Ok = Value;
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
                self.insert(key.to_owned(), value)
            }

            fn end(self) -> Result<Value, Error> {
                Ok(self.finish())
            }
        })*
    };
}

fields!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for Fields {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = match plain_json(key)? {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            _ => return Err(Error::custom("key must be a string or a number")),
        };
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take().ok_or_else(|| Error::custom("value without a key"))?;
        self.insert(key, value)
    }

    fn end(self) -> Result<Value, Error> {
        Ok(self.finish())
    }
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, CpuQuota, LimitsPatch, MemoryLimit, Micros};
    use model::{ImageName, MountSource, Profile, UserRef};

    use super::*;

    #[test]
    fn enums_of_limits_users_profiles_and_mounts_have_plain_forms() {
        let limits = LimitsPatch {
            cpu_quota: Some(CpuQuota::Micros(Micros(50_000))),
            memory: Some(MemoryLimit::Bytes(Bytes(67_108_864))),
            memory_swap: Some(MemoryLimit::Unlimited),
            ..LimitsPatch::default()
        };
        let shown = plain_json(&limits).unwrap();
        assert_eq!(
            (&shown["cpu_quota"], &shown["memory"], &shown["memory_swap"], &shown["cpu_shares"]),
            (&json!(50_000), &json!(67_108_864), &json!(-1), &Value::Null)
        );
        let users = [UserRef::Id(7), UserRef::Name("web".to_owned())];
        assert_eq!(plain_json(&users).unwrap(), json!([7, "web"]));
        let profiles = [Profile::RuntimeDefault, Profile::Localhost("a.json".to_owned())];
        assert_eq!(plain_json(&profiles).unwrap(), json!(["RuntimeDefault", "localhost/a.json"]));
        let image = ImageName {
            image: "a".to_owned(),
            user_specified: String::new(),
            annotations: [("Key".to_owned(), "x".to_owned())].into(),
            handler: String::new(),
        };
        let sources = [MountSource::Host("/srv".into()), MountSource::Image { image, sub_path: "b".to_owned() }];
        let image = json!({ "image": "a", "user_specified": "", "annotations": { "Key": "x" }, "handler": "" });
        let expected = json!([
            { "type": "host", "value": "/srv" },
            { "type": "image", "image": image, "sub_path": "b" },
        ]);
        assert_eq!(plain_json(&sources).unwrap(), expected);
    }

    #[test]
    fn values_without_enums_have_the_form_of_serde_json() {
        let value = json!({ "a": [1, -2, 1.5, "x", null, true], "b": { "c": {} } });
        assert_eq!(plain_json(&value).unwrap(), value);
        assert_eq!(plain_json(&std::collections::BTreeMap::from([(1, ())])).unwrap(), json!({ "1": null }));
    }
}
