//! What an expression is made of.

use std::sync::Arc;

/// A part of an expression, and the byte where it begins.
#[derive(Debug)]
pub(super) struct Expr {
    pub at: usize,
    pub node: Node,
    /// Levels of parts inside each other, itself among them, where what a part goes on from counts as beside it.
    pub depth: usize,
    /// All levels of parts inside each other.
    pub height: usize,
}

impl Expr {
    /// What it goes on from: the left side of an operator, and what a member, an element or a method is of.
    pub fn before(&self) -> Option<&Self> {
        match &self.node {
            Node::Select { operand, .. } | Node::Index { operand, .. } => Some(operand),
            Node::Call { method: true, arguments, .. } => arguments.first(),
            Node::Binary(_, parts) => Some(&parts[0]),
            Node::Comprehension(it) => Some(&it.range),
            _ => None,
        }
    }

    pub fn before_mut(&mut self) -> Option<&mut Self> {
        match &mut self.node {
            Node::Select { operand, .. } | Node::Index { operand, .. } => Some(operand),
            Node::Call { method: true, arguments, .. } => arguments.first_mut(),
            Node::Binary(_, parts) => Some(&mut parts[0]),
            Node::Comprehension(it) => Some(&mut it.range),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum Node {
    Literal(Literal),
    Name(String),
    Select {
        operand: Box<Expr>,
        field: String,
        optional: bool,
    },
    Has {
        operand: Box<Expr>,
        field: String,
    },
    Index {
        operand: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    /// The arguments of a method begin with what it is called on.
    Call {
        name: String,
        method: bool,
        arguments: Vec<Expr>,
    },
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Conditional(Box<[Expr; 3]>),
    Binary(Operator, Box<[Expr; 2]>),
    /// Each element, and whether it is an optional that may be left out.
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    Comprehension(Box<Comprehension>),
}

#[derive(Debug)]
pub(super) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Arc<[u8]>),
}

/// A macro over the elements of a list or the keys of a map.
#[derive(Debug)]
pub(super) struct Comprehension {
    pub shape: Shape,
    pub range: Expr,
    /// One for elements or keys; two for indexes or keys, and their values.
    pub variables: Vec<String>,
    /// Which elements `map` and `transformList` take.
    pub filter: Option<Expr>,
    pub body: Expr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
    TransformMap,
    OptionalMap,
    OptionalFlatMap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl Operator {
    /// As upstream names it in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "_==_",
            Self::NotEqual => "_!=_",
            Self::Less => "_<_",
            Self::LessOrEqual => "_<=_",
            Self::Greater => "_>_",
            Self::GreaterOrEqual => "_>=_",
            Self::In => "@in",
            Self::Add => "_+_",
            Self::Subtract => "_-_",
            Self::Multiply => "_*_",
            Self::Divide => "_/_",
            Self::Modulo => "_%_",
        }
    }
}
