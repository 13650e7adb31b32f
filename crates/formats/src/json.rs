//! JSON with duplicate keys refused, and what the typed getters of both kinds of metadata share.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::FormatError;

/// Parses a whole document. Depth is bounded by `serde_json`.
///
/// Errors: `Json`; `KeyDuplicate`, which `serde_json` alone would pass over in silence.
pub(crate) fn parse(file: &Path, bytes: &[u8]) -> Result<Value, FormatError> {
    let duplicate = RefCell::new(None);
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = Strict { duplicate: &duplicate }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|source| match duplicate.take() {
        Some(key) => FormatError::KeyDuplicate { file: file.to_owned(), key },
        None => FormatError::Json { file: file.to_owned(), source },
    })
}

/// A string for an error message, cut when it is long.
pub(crate) fn describe_str(s: &str) -> String {
    const CHARS_MAX: usize = 40;
    match s.char_indices().nth(CHARS_MAX) {
        None => format!("the string {s:?}"),
        Some((cut, _)) => format!("the string {:?}... of {} B", &s[..cut], s.len()),
    }
}

/// A JSON value for an error message.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => format!("the boolean {b}"),
        Value::Number(n) => format!("the number {n}"),
        Value::String(s) => describe_str(s),
        Value::Array(a) => format!("an array of {}", a.len()),
        Value::Object(o) => format!("an object of {} keys", o.len()),
    }
}

/// Writes `get_*` and `opt_*` for each type. The type they are written for has a field `path`, a
/// method `find(key) -> Option<&Value>` and a function `describe(&Value) -> String`.
macro_rules! typed_getters {
    (key: &$value:ty; $($get:ident, $opt:ident: $type:ty, $expected:literal, $pick:expr;)*) => {$(
        #[doc = concat!("The value of `key`, ", $expected, ".")]
        ///
        /// Errors: `KeyMissing`, `KeyType`.
        pub fn $get(&self, key: &str) -> Result<$type, FormatError> {
            self.$opt(key)?.ok_or_else(|| FormatError::KeyMissing {
                file: self.path.clone(),
                key: key.to_owned(),
                expected: $expected,
            })
        }

        #[doc = concat!("The value of `key`, ", $expected, ", if there is one.")]
        ///
        /// Errors: `KeyType`.
        pub fn $opt(&self, key: &str) -> Result<Option<$type>, FormatError> {
            let pick: fn(&$value) -> Option<$type> = $pick;
            let Some(value) = self.find(key) else { return Ok(None) };
            pick(value).map(Some).ok_or_else(|| FormatError::KeyType {
                file: self.path.clone(),
                key: key.to_owned(),
                expected: $expected,
                found: Self::describe(value),
            })
        }
    )*};
}
pub(crate) use typed_getters;

/// Builds a `Value`, and notes the first key seen twice in one object.
#[derive(Clone, Copy)]
struct Strict<'n> {
    duplicate: &'n RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E>(self, x: f64) -> Result<Value, E> {
        Ok(Number::from_f64(x).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, s: &str) -> Result<Value, E> {
        Ok(Value::String(s.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                self.duplicate.replace(Some(key));
                return Err(A::Error::custom("a key appears twice"));
            }
            let value = map.next_value_seed(self)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
