//! `config.json`: the shape of a safetensors checkpoint's model.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::mmap::MappedFile;
use crate::{FormatError, json};

/// Far above any real `config.json`, quantisation tables of every layer included.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A parsed `config.json`.
#[derive(Clone, Debug)]
pub struct ConfigJson {
    path: PathBuf,
    root: Value,
}

impl ConfigJson {
    /// Reads the file at `path`.
    ///
    /// Errors: those of the file itself, `FileTooLarge`, and those of [`ConfigJson::parse`].
    pub fn open(path: &Path) -> Result<ConfigJson, FormatError> {
        ConfigJson::parse(path, MappedFile::open(path)?.bytes())
    }

    /// Parses `bytes`. `path` is for errors; no file is touched.
    ///
    /// Errors: `FileTooLarge`, `Json`, `KeyDuplicate`; `KeyType` (with an empty key) when the
    /// document is not an object.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<ConfigJson, FormatError> {
        let (file, found, limit) = (path.to_owned(), bytes.len() as u64, FILE_BYTES_MAX);
        if found > limit {
            return Err(FormatError::FileTooLarge { file, found, limit });
        }
        let root = json::parse(path, bytes)?;
        if !root.is_object() {
            let (key, expected, found) = (String::new(), "an object", json::describe(&root));
            return Err(FormatError::KeyType { file, key, expected, found });
        }
        Ok(ConfigJson { path: path.to_owned(), root })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole document, an object.
    pub fn raw(&self) -> &Value {
        &self.root
    }

    /// The object at `key` as a document of its own, if there is one.
    pub fn within(&self, key: &str) -> Option<ConfigJson> {
        let root = self.get(key).filter(|value| value.is_object())?;
        Some(ConfigJson { path: self.path.clone(), root: root.clone() })
    }

    /// The value at a dotted path such as `text_config.rope_parameters.rope_theta`. `null` is a
    /// value here.
    pub fn get(&self, key: &str) -> Option<&Value> {
        key.split('.').try_fold(&self.root, |value, part| value.as_object()?.get(part))
    }
}

/// Typed values at a dotted path. `get_*` needs the key: `KeyMissing` without it. `opt_*` does not:
/// `None`. Both take `null` for absent, as the files' writers mean it, and answer a value of
/// another type with `KeyType`.
impl ConfigJson {
    json::typed_getters! {
        key: &Value;
        get_u64, opt_u64: u64, "an unsigned integer", Value::as_u64;
        get_f64, opt_f64: f64, "a number", Value::as_f64;
        get_bool, opt_bool: bool, "a boolean", Value::as_bool;
        get_str, opt_str: &str, "a string", Value::as_str;
        get_array, opt_array: &[Value], "an array", |v| v.as_array().map(Vec::as_slice);
    }

    fn find(&self, key: &str) -> Option<&Value> {
        self.get(key).filter(|value| !value.is_null())
    }

    fn describe(value: &Value) -> String {
        json::describe(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConfigJson, FormatError> {
        ConfigJson::parse(Path::new("config.json"), text.as_bytes())
    }

    #[test]
    fn getters_follow_dotted_paths() {
        let config = parse(
            r#"{"a": {"n": 3, "x": 1e6, "s": "t", "l": [1, 2], "b": true, "z": null}, "n": -1}"#,
        )
        .unwrap();
        assert_eq!(config.get_u64("a.n").unwrap(), 3);
        assert_eq!(config.get_f64("a.n").unwrap(), 3.0);
        assert_eq!(config.get_f64("a.x").unwrap(), 1e6);
        assert_eq!(config.get_str("a.s").unwrap(), "t");
        assert_eq!(config.get_array("a.l").unwrap().len(), 2);
        assert!(config.get_bool("a.b").unwrap());
        assert_eq!(config.opt_u64("a.z").unwrap(), None);
        assert_eq!(config.opt_u64("a.n.deeper").unwrap(), None);
        assert_eq!(config.raw()["n"], -1);
    }

    #[test]
    fn errors_name_file_key_expected_and_found() {
        let config = parse(r#"{"a": {"n": -3}, "z": null}"#).unwrap();
        assert_eq!(
            config.get_u64("a.n").unwrap_err().to_string(),
            r#"config.json: key "a.n" is the number -3, expected an unsigned integer"#
        );
        assert_eq!(
            config.get_str("z").unwrap_err().to_string(),
            r#"config.json: key "z" is missing, expected a string"#
        );
    }

    #[test]
    fn duplicate_key_is_refused_at_any_depth() {
        let error = parse(r#"{"a": [{"n": 1, "n": 2}]}"#).unwrap_err();
        assert!(matches!(error, FormatError::KeyDuplicate { key, .. } if key == "n"));
    }

    #[test]
    fn other_documents_are_refused() {
        for text in
            ["", "[]", "3", "{", "{}x", "{\"a\": NaN}", "\u{feff}{}", "{\"a\": \"\\ud800\"}"]
        {
            let error = parse(text).unwrap_err();
            let expected = matches!(error, FormatError::Json { .. } | FormatError::KeyType { .. });
            assert!(expected, "{text:?}: {error}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        assert!(matches!(parse(&deep), Err(FormatError::Json { .. })));
        let large = format!("{{}}{}", " ".repeat(FILE_BYTES_MAX as usize));
        assert!(matches!(parse(&large), Err(FormatError::FileTooLarge { .. })));
    }

    proptest::proptest! {
        #[test]
        fn any_value_parses_as_serde_json_does(text in r#"[\[\]{}",:0-9a-c\-.e ]{0,60}"#) {
            let ours = parse(&text).map(|c| c.root);
            let theirs = serde_json::from_str::<Value>(&text);
            match (ours, theirs) {
                (Ok(ours), Ok(theirs)) => proptest::prop_assert_eq!(ours, theirs),
                (Ok(_), Err(e)) => proptest::prop_assert!(false, "{e}"),
                (Err(FormatError::KeyType { .. } | FormatError::KeyDuplicate { .. }), _) => {}
                (Err(e), theirs) => proptest::prop_assert!(theirs.is_err(), "{e}"),
            }
        }
    }
}
