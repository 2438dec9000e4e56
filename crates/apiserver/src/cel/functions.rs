//! The functions that expressions may call: those of the language and those that Kubernetes has added.

mod convert;
mod formats;
mod lists;
mod math;
mod network;
mod optional;
mod quantities;
mod semver;
mod strings;
pub(super) mod time;

pub(crate) use formats::Format;
pub(crate) use network::{Cidr, Url};
pub(crate) use semver::Semver;

use super::operate::no_overload;
use super::regexes::Regexes;
use super::types::Type;
use super::{Error, Run, Value};

/// What a function is called with.
pub(super) struct Call<'c, 'a> {
    pub values: &'c [Value<'a>],
    pub regexes: &'c Regexes,
    pub run: &'c mut Run,
}

/// A result, or nothing if the function does not take such values.
type Outcome<'a> = Result<Option<Value<'a>>, Error>;

/// One way to call a function. A name may have several; all of them are one function of the values' types.
pub(super) struct Function {
    pub name: &'static str,
    /// Called on its first argument.
    pub method: bool,
    pub takes: &'static [Takes],
    pub gives: Gives,
    call: for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>,
}

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Any,
    Bool,
    Int,
    Double,
    Number,
    Text,
    Bytes,
    Timestamp,
    Duration,
    List,
    Texts,
    Map,
    Optional,
    Opaque(&'static str),
}

/// The type of a result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gives {
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Timestamp,
    Duration,
    Type,
    Texts,
    Opaque(&'static str),
    /// What the first argument is.
    First,
    /// What the list that is the first argument has.
    Element,
    /// What the optional that is the first argument may have.
    Inner,
    OptionalFirst,
    OptionalTexts,
    OptionalOpaque(&'static str),
    OptionalDyn,
    /// Each name with all its values.
    Query,
}

impl Takes {
    pub fn accepts(self, given: &Type) -> bool {
        match (self, given) {
            (Self::Any, _)
            | (_, Type::Dyn)
            | (Self::Bool, Type::Bool)
            | (Self::Int, Type::Int)
            | (Self::Double, Type::Double)
            | (Self::Text, Type::Text)
            | (Self::Bytes, Type::Bytes)
            | (Self::Timestamp, Type::Timestamp)
            | (Self::Duration, Type::Duration)
            | (Self::List, Type::List(_))
            | (Self::Map, Type::Map(_))
            | (Self::Optional, Type::Optional(_)) => true,
            (Self::Number, given) => given.is_number(),
            (Self::Texts, Type::List(list)) => list.element.fits(&Type::Text),
            (Self::Opaque(name), Type::Opaque(given)) => name == *given,
            _ => false,
        }
    }
}

impl Gives {
    pub fn of(self, arguments: &[Type]) -> Type {
        let first = || arguments.first().cloned().unwrap_or(Type::Dyn);
        let inner = |of: Type| match of {
            Type::List(list) => list.element.clone(),
            Type::Optional(inner) => (*inner).clone(),
            _ => Type::Dyn,
        };
        match self {
            Self::Dyn => Type::Dyn,
            Self::Bool => Type::Bool,
            Self::Int => Type::Int,
            Self::Uint => Type::Uint,
            Self::Double => Type::Double,
            Self::Text => Type::Text,
            Self::Bytes => Type::Bytes,
            Self::Timestamp => Type::Timestamp,
            Self::Duration => Type::Duration,
            Self::Type => Type::Meta,
            Self::Texts => Type::list(Type::Text),
            Self::Query => Type::Map(Type::list(Type::Text).into()),
            Self::Opaque(name) => Type::Opaque(name),
            Self::First => first(),
            Self::Element | Self::Inner => inner(first()),
            Self::OptionalFirst => Type::optional(first()),
            Self::OptionalTexts => Type::optional(Type::list(Type::Text)),
            Self::OptionalOpaque(name) => Type::optional(Type::Opaque(name)),
            Self::OptionalDyn => Type::optional(Type::Dyn),
        }
    }
}

const TABLES: [&[Function]; 10] = [
    convert::TABLE,
    strings::TABLE,
    lists::TABLE,
    math::TABLE,
    time::TABLE,
    optional::TABLE,
    quantities::TABLE,
    network::TABLE,
    semver::TABLE,
    formats::TABLE,
];

/// All ways to call a function of this name.
pub(super) fn named(name: &str) -> impl Iterator<Item = &'static Function> {
    TABLES.into_iter().flatten().filter(move |function| function.name == name)
}

/// What a function comes to. Functions of one name never take the same values.
pub(super) fn call<'a>(name: &str, values: &[Value<'a>], regexes: &Regexes, run: &mut Run) -> Result<Value<'a>, Error> {
    for function in named(name).filter(|function| function.takes.len() == values.len()) {
        if let Some(value) = (function.call)(Call { values, regexes, run })? {
            return Ok(value);
        }
    }
    Err(no_overload(name, &values.iter().collect::<Vec<_>>()))
}

fn failed(why: impl Into<String>) -> Error {
    Error::Failed(why.into())
}
