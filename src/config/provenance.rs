//! Where each effective setting came from.

use super::yaml::Origin;

/// A setting with its effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// Path of its key.
    pub path: String,
    /// Its value as it would be written; a secret is masked.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// All settings in the order in which they are read, each once.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    list: Vec<Effective>,
}

impl Provenance {
    /// Notes a setting.
    pub fn note(&mut self, path: String, value: String, origin: Origin) {
        match self.list.iter_mut().find(|setting| setting.path == path) {
            Some(known) => *known = Effective { path, value, origin },
            None => self.list.push(Effective { path, value, origin }),
        }
    }

    /// The settings.
    pub fn iter(&self) -> impl Iterator<Item = &Effective> {
        self.list.iter()
    }

    /// Where the value of a key came from; the default when it was never read.
    pub fn origin(&self, path: &str) -> Origin {
        self.list
            .iter()
            .find(|setting| setting.path == path)
            .map_or(Origin::Default, |setting| setting.origin.clone())
    }
}
