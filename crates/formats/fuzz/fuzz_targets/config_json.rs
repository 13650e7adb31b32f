//! Any bytes as `config.json`: an error or an object whose getters answer, never a panic.
#![no_main]

use std::path::Path;

use ignis_formats::ConfigJson;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = ConfigJson::parse(Path::new("config.json"), bytes) else { return };
    let root = config.raw().as_object().expect("only objects are accepted");
    for (key, value) in root {
        if !key.contains('.') {
            assert_eq!(config.get(key), Some(value));
        }
        let _ = (config.opt_u64(key), config.opt_f64(key), config.opt_bool(key));
        for error in [config.opt_str(key).err(), config.opt_array(key).err()].iter().flatten() {
            let _ = error.to_string();
        }
    }
});
