//! The fields of a map value, in their declared order.
//!
//! Most maps are records with a few fields: those are searched in order. A map used as a dictionary gets an
//! index at its first look-up.

use super::Value;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// Above this number of fields a look-up goes through an index.
const SEARCHED_FIELDS_MAX: usize = 24;

type Index = HashMap<Arc<str>, u32>;

/// Fields in their declared order; names are unique.
#[derive(Debug, Default)]
pub struct Map {
    fields: Vec<(Arc<str>, Value)>,
    index: OnceLock<Box<Index>>,
}

impl Map {
    /// A map with these fields; of two fields with one name the later value counts, at the place of the
    /// earlier.
    pub fn from_fields(fields: impl IntoIterator<Item = (Arc<str>, Value)>) -> Map {
        let mut map = Map::default();
        let fields = fields.into_iter();
        map.fields.reserve(fields.size_hint().0.min(1024));
        for (name, value) in fields {
            map.insert(name, value);
        }
        map
    }

    /// An empty map with room for `fields` fields.
    pub fn with_room(fields: usize) -> Map {
        Map { fields: Vec::with_capacity(fields), index: OnceLock::new() }
    }

    /// Sets a field: in place when there is one of that name, else as the last.
    pub fn insert(&mut self, name: Arc<str>, value: Value) {
        match self.position(&name) {
            Some(at) => self.fields[at].1 = value,
            None => {
                if let Some(index) = self.index.get_mut() {
                    index.insert(name.clone(), self.fields.len() as u32);
                }
                self.fields.push((name, value));
            }
        }
    }

    /// The field of this name.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.position(name).map(|at| &self.fields[at].1)
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The fields in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Value)> {
        self.fields.iter().map(|(name, value)| (name, value))
    }

    #[inline]
    fn position(&self, name: &str) -> Option<usize> {
        if self.fields.len() <= SEARCHED_FIELDS_MAX {
            return self.fields.iter().position(|(field, _)| **field == *name);
        }
        let index = self.index.get_or_init(|| {
            Box::new(
                self.fields.iter().enumerate().map(|(at, (name, _))| (name.clone(), at as u32)).collect(),
            )
        });
        index.get(name).map(|at| *at as usize)
    }
}

impl Clone for Map {
    fn clone(&self) -> Map {
        Map { fields: self.fields.clone(), index: OnceLock::new() }
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Map) -> bool {
        self.len() == other.len() && self.iter().all(|(name, value)| other.get(name) == Some(value))
    }
}

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Map, D::Error> {
        // Through `from_fields`: what comes from the wire may not break "names are unique".
        Ok(Map::from_fields(Vec::<(Arc<str>, Value)>::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_field_of_the_same_name_wins_at_the_place_of_the_earlier() {
        for fillers in [0, 100] {
            let mut map = Map::default();
            map.insert("a".into(), Value::Int(1));
            for filler in 0..fillers {
                map.insert(format!("f{filler}").into(), Value::Null);
            }
            map.insert("b".into(), Value::Int(2));
            map.insert("a".into(), Value::Int(3));
            assert_eq!(map.len(), fillers + 2);
            assert_eq!(map.iter().next().map(|(name, value)| (&**name, value)), Some(("a", &Value::Int(3))));
            assert_eq!(map.get("b"), Some(&Value::Int(2)));
            assert_eq!(map.get("c"), None);
        }
    }
}
