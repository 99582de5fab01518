//! A property's value: itself, or where to read it.

use std::env::VarError;
use std::fs;

use super::ConfigError;

/// What the user wrote, and what was read from where it refers to.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) written: String,
    read: Option<String>,
}

impl Value {
    pub(super) fn new(written: String) -> Self {
        Self { written, read: None }
    }

    /// Whether it stands elsewhere: in a file or a variable.
    pub(super) fn refers(&self) -> bool {
        self.written.starts_with("file:") || self.written.starts_with("env:")
    }

    /// Keeps what it refers to now.
    pub(super) fn read(&mut self, name: &str) -> Result<(), ConfigError> {
        self.read = Some(self.resolve(name)?);
        Ok(())
    }

    /// What librdkafka is to be given; read now, unless it was before.
    pub(super) fn resolve(&self, name: &str) -> Result<String, ConfigError> {
        if let Some(read) = &self.read {
            return Ok(read.clone());
        }
        let unreadable = |source| ConfigError::Unreadable {
            name: name.to_owned(),
            reference: self.written.clone(),
            source,
        };
        if let Some(path) = self.written.strip_prefix("file:") {
            let text = fs::read_to_string(path).map_err(|error| unreadable(error.into()))?;
            // The line break that editors and `echo` leave is not part of a password.
            Ok(text.trim_end_matches(['\r', '\n']).to_owned())
        } else if let Some(variable) = self.written.strip_prefix("env:") {
            std::env::var(variable).map_err(|error| match error {
                // This error quotes the value.
                VarError::NotUnicode(_) => unreadable("it is not UTF-8".into()),
                VarError::NotPresent => unreadable(error.into()),
            })
        } else {
            Ok(self.written.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(name: &str, written: &str) -> Result<String, ConfigError> {
        Value::new(written.to_owned()).resolve(name)
    }

    #[test]
    fn values_are_read_from_files_and_variables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        fs::write(&path, "hunter2\n").unwrap();
        let reference = format!("file:{}", path.display());
        assert_eq!(resolve("sasl.password", &reference).unwrap(), "hunter2");
        assert_eq!(resolve("client.rack", "env:CARGO_PKG_NAME").unwrap(), "seriatim-kafka");

        let error = resolve("sasl.password", "file:/nowhere").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the value of `sasl.password` cannot be read from file:/nowhere"
        );
        assert!(resolve("sasl.password", "env:SERIATIM_NO_SUCH").is_err());
    }

    #[test]
    fn what_was_read_stays_also_if_it_looks_like_a_reference() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        fs::write(&path, "env:hunter2").unwrap();
        let mut value = Value::new(format!("file:{}", path.display()));
        value.read("sasl.password").unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(value.resolve("sasl.password").unwrap(), "env:hunter2");
    }
}
