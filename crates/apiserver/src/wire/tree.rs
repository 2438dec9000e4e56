//! A JSON tree that remembers which members were given twice.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::bounds::{MAP, VALUE, Weight};
use crate::place::{Noted, Place};

/// Reads a tree; of a member that is given twice the last one counts, and its path is noted.
pub(super) struct Tree<'a> {
    place: Place<'a>,
    reading: &'a Reading,
}

/// What one body has come to so far.
pub(super) struct Reading {
    pub duplicates: RefCell<Noted>,
    weight: Weight,
}

impl Reading {
    pub fn new() -> Self {
        Self { duplicates: RefCell::default(), weight: Weight::default() }
    }

    fn take<E: Error>(&self, weight: usize) -> Result<(), E> {
        if self.weight.take(weight) { Ok(()) } else { Err(E::custom("it has too many values")) }
    }
}

impl<'a> Tree<'a> {
    pub fn new(reading: &'a Reading) -> Self {
        Self { place: Place::Root, reading }
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.reading.take(value.len())?;
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.reading.take(value.len())?;
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let below = Tree { place: self.place.element(list.len()), reading: self.reading };
            let Some(element) = elements.next_element_seed(below)? else { break };
            self.reading.take(VALUE)?;
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            let place = self.place.member(&name);
            // A map that has members takes the room of several, however short they are.
            self.reading.take(name.len() + if members.is_empty() { MAP } else { VALUE })?;
            let value = entries.next_value_seed(Tree { place, reading: self.reading })?;
            if members.contains_key(&name) {
                self.reading.duplicates.borrow_mut().note(&place);
            }
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}
