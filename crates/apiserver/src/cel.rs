//! The Common Expression Language, as far as the rules of definitions use it.
//!
//! A rule comes from whoever may write a definition and runs on whatever others write, so all of it is bounded: the length and
//! depth of an expression, and what evaluating it may cost. Values are looked at where they are; nothing is copied out of the
//! object that a rule is about.

mod check;
mod eval;
mod functions;
mod lex;
mod literal;
mod operate;
mod parse;
mod regexes;
mod syntax;
mod types;
mod value;

#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use eval::Run;
pub(crate) use types::{Type, escape, is_resource};
pub(crate) use value::Value;

use check::Checker;
use regexes::Regexes;
use syntax::Expr;

/// An expression that was read and whose types fit.
#[derive(Debug)]
pub(crate) struct Program {
    expr: Expr,
    regexes: Regexes,
    result: Type,
    uses_old_self: bool,
}

/// What is wrong with an expression, and where: the byte at which the wrong part begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    at: usize,
    why: String,
}

impl Mistake {
    fn new(at: usize, why: impl Into<String>) -> Self {
        Self { at, why: why.into() }
    }

    /// As upstream says it, without the picture.
    fn told(&self, text: &str) -> String {
        let before = &text[..text.floor_char_boundary(self.at)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("ERROR: <input>:{line}:{column}: {}", self.why)
    }
}

/// Why an evaluation has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Error {
    /// It would cost more than it may.
    Cost,
    /// No function or operator takes these values.
    Overload(String),
    /// A key that is not there, a division by zero and the like.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost => f.write_str("operation cancelled: actual cost limit exceeded"),
            Self::Overload(what) => write!(f, "no such overload: {what}"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl Program {
    /// Reads an expression about `self`, or says what is wrong with it. `old_self` is the type of the value before.
    pub fn compile(text: &str, own: &Type, old_self: &Type) -> Result<Self, String> {
        let compiled = || {
            let mut expr = parse::parse(text)?;
            let mut checker = Checker::new(own, old_self);
            let result = checker.check(&mut expr)?;
            let (regexes, uses_old_self) = checker.found();
            Ok(Self { expr, regexes, result, uses_old_self })
        };
        compiled().map_err(|mistake: Mistake| mistake.told(text))
    }

    /// The type of what it comes to.
    pub fn result(&self) -> &Type {
        &self.result
    }

    /// Whether it asks for the value before.
    pub fn uses_old_self(&self) -> bool {
        self.uses_old_self
    }

    /// Bytes that its compiled patterns take.
    pub fn weight(&self) -> usize {
        self.regexes.weight()
    }

    /// What it comes to for these values; the run is charged for it.
    pub fn evaluate<'a>(
        &'a self,
        own: &Value<'a>,
        old_self: Option<&Value<'a>>,
        run: &mut Run,
    ) -> Result<Value<'a>, Error> {
        eval::evaluate(&self.expr, &self.regexes, own, old_self, run)
    }
}
