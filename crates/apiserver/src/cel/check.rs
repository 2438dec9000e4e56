//! Types: whether an expression can be what it says, before there is a value.

use super::functions::{Takes, named};
use super::regexes::Regexes;
use super::syntax::{Comprehension, Expr, Literal, Node, Operator, Shape};
use super::types::{NAMES, Type};
use super::{Mistake, functions};

/// Names before a dot that are part of the name of a function.
const SPACES: [&str; 7] = ["optional", "sets", "math", "base64", "format", "ip", "strings"];

pub(super) struct Checker {
    /// The innermost last.
    variables: Vec<(String, Type)>,
    regexes: Regexes,
    uses_old_self: bool,
}

impl Checker {
    pub fn new(own: &Type, old_self: &Type) -> Self {
        let variables = [("self", own), ("oldSelf", old_self)];
        Self {
            variables: variables.map(|(name, of)| (name.to_owned(), of.clone())).into(),
            regexes: Regexes::default(),
            uses_old_self: false,
        }
    }

    /// The patterns there are, and whether there is `oldSelf`.
    pub fn found(self) -> (Regexes, bool) {
        (self.regexes, self.uses_old_self)
    }

    fn variable(&self, name: &str) -> Option<(usize, &Type)> {
        let position = self.variables.iter().rposition(|(known, _)| known == name)?;
        Some((position, &self.variables[position].1))
    }

    /// The type of what this comes to.
    ///
    /// Recurses once for each part of a chain, and does nothing else, so that a long one takes little of the stack.
    pub fn check(&mut self, expr: &mut Expr) -> Result<Type, Mistake> {
        self.qualify(expr);
        match expr.before_mut() {
            Some(before) => {
                let of = self.check(before)?;
                self.go_on(expr, of)
            }
            None => self.alone(expr),
        }
    }

    /// The type of a part that goes on from something of this type.
    #[inline(never)]
    fn go_on(&mut self, expr: &mut Expr, of: Type) -> Result<Type, Mistake> {
        let at = expr.at;
        match &mut expr.node {
            Node::Select { field, optional, .. } => {
                let chained = matches!(of, Type::Optional(_));
                let found = select(at, &of, field)?;
                Ok(if *optional || chained { Type::optional(found) } else { found })
            }
            Node::Index { index, optional, .. } => {
                let by = self.check(index)?;
                let chained = matches!(of, Type::Optional(_));
                let found = indexed(at, &of, &by)?;
                Ok(if *optional || chained { Type::optional(found) } else { found })
            }
            Node::Call { name, arguments, .. } => self.call(at, name, Some(of), arguments),
            Node::Binary(operator, parts) => {
                let right = self.check(&mut parts[1])?;
                of_binary(at, *operator, of, right)
            }
            Node::Comprehension(comprehension) => self.comprehension(at, comprehension, of),
            _ => Ok(of),
        }
    }

    #[inline(never)]
    fn alone(&mut self, expr: &mut Expr) -> Result<Type, Mistake> {
        let at = expr.at;
        match &mut expr.node {
            Node::Literal(literal) => Ok(of_literal(literal)),
            Node::Name(name) => self.name(at, name),
            Node::Has { operand, field } => {
                let of = self.check(operand)?;
                select(at, &of, field)?;
                Ok(Type::Bool)
            }
            Node::Call { name, arguments, .. } => self.call(at, name, None, arguments),
            Node::And(parts) | Node::Or(parts) => {
                parts.iter_mut().try_for_each(|part| self.condition(part))?;
                Ok(Type::Bool)
            }
            Node::Not(operand) => {
                self.condition(operand)?;
                Ok(Type::Bool)
            }
            Node::Negate(operand) => match self.check(operand)? {
                of @ (Type::Int | Type::Double | Type::Dyn) => Ok(of),
                other => Err(no_overload(at, "-_", &[other])),
            },
            Node::Conditional(parts) => {
                let [condition, then, otherwise] = &mut **parts;
                self.condition(condition)?;
                let (then, otherwise) = (self.check(then)?, self.check(otherwise)?);
                if !then.fits(&otherwise) {
                    return Err(no_overload(at, "_?_:_", &[Type::Bool, then, otherwise]));
                }
                Ok(wider(then, otherwise))
            }
            Node::List(elements) => {
                let mut of = None;
                for (element, optional) in elements {
                    let found = self.check(element)?;
                    let found = if *optional { unwrapped(element.at, found)? } else { found };
                    of = Some(common(of, found));
                }
                Ok(Type::list(of.unwrap_or(Type::Dyn)))
            }
            Node::Map(entries) => {
                let mut of = None;
                for (key, value, optional) in entries {
                    match self.check(key)? {
                        Type::Text | Type::Int | Type::Uint | Type::Bool | Type::Dyn => {}
                        other => return Err(Mistake::new(key.at, format!("unsupported key type: {other}"))),
                    }
                    let found = self.check(value)?;
                    let found = if *optional { unwrapped(value.at, found)? } else { found };
                    of = Some(common(of, found));
                }
                Ok(Type::Map(of.unwrap_or(Type::Dyn).into()))
            }
            Node::Select { .. } | Node::Index { .. } | Node::Binary(..) | Node::Comprehension(_) => {
                Err(Mistake::new(at, "a part that goes on from another stands alone"))
            }
        }
    }

    fn condition(&mut self, expr: &mut Expr) -> Result<(), Mistake> {
        match self.check(expr)? {
            Type::Bool | Type::Dyn => Ok(()),
            other => Err(Mistake::new(expr.at, format!("expected type 'bool' but found '{other}'"))),
        }
    }

    fn name(&mut self, at: usize, name: &str) -> Result<Type, Mistake> {
        if let Some((position, of)) = self.variable(name) {
            let of = of.clone();
            // The two that were there before any macro.
            self.uses_old_self |= position == 1;
            return Ok(of);
        }
        match NAMES.iter().any(|(known, _)| *known == name) {
            true => Ok(Type::Meta),
            false => Err(Mistake::new(at, format!("undeclared reference to '{name}' (in container '')"))),
        }
    }

    /// `math.greatest(..)` looks like a call on a variable.
    #[inline(never)]
    fn qualify(&self, expr: &mut Expr) {
        let Node::Call { name, method, arguments } = &mut expr.node else { return };
        let space = arguments.first().and_then(|first| match &first.node {
            Node::Name(space) if *method && SPACES.contains(&space.as_str()) => Some(space.clone()),
            _ => None,
        });
        if let Some(space) = space.filter(|space| self.variable(space).is_none()) {
            *name = format!("{space}.{name}");
            *method = false;
            arguments.remove(0);
        }
    }

    /// A call, of a method if there is the type of what it is called on.
    fn call(&mut self, at: usize, name: &str, on: Option<Type>, arguments: &mut [Expr]) -> Result<Type, Mistake> {
        let method = on.is_some();
        let mut given = Vec::from_iter(on);
        for argument in &mut arguments[usize::from(method)..] {
            given.push(self.check(argument)?);
        }
        let fits = |takes: &[Takes]| {
            takes.len() == given.len() && takes.iter().zip(&given).all(|(takes, given)| takes.accepts(given))
        };
        let found = named(name).find(|function| function.method == method && fits(function.takes));
        let Some(function) = found else {
            return Err(match functions::named(name).next() {
                Some(_) => no_overload(at, name, &given),
                None => Mistake::new(at, format!("undeclared reference to '{name}' (in container '')")),
            });
        };
        if matches!(name, "matches" | "find" | "findAll")
            && let Some(Node::Literal(Literal::Text(pattern))) = arguments.get(1).map(|argument| &argument.node)
        {
            self.regexes.add(pattern).map_err(|why| Mistake::new(at, format!("invalid {name} argument: {why}")))?;
        }
        // What is known only later of two types is what the function says of the first that may fit.
        let several = given.iter().any(|given| matches!(given, Type::Dyn))
            && named(name).filter(|function| function.method == method && fits(function.takes)).count() > 1;
        let gives = function.gives.of(&given);
        Ok(match several && named(name).filter(|f| fits(f.takes)).any(|f| !f.gives.of(&given).fits(&gives)) {
            true => Type::Dyn,
            false => gives,
        })
    }

    fn comprehension(&mut self, at: usize, it: &mut Comprehension, range: Type) -> Result<Type, Mistake> {
        let optional = matches!(it.shape, Shape::OptionalMap | Shape::OptionalFlatMap);
        let (key, value) = match &range {
            Type::Dyn => (Type::Dyn, Type::Dyn),
            Type::Optional(inner) if optional => (Type::Dyn, (**inner).clone()),
            Type::List(list) if !optional => (Type::Int, list.element.clone()),
            Type::Map(inner) if !optional => (Type::Text, (**inner).clone()),
            other if optional => return Err(no_overload(at, "optMap", std::slice::from_ref(other))),
            other => {
                let why = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return Err(Mistake::new(it.range.at, why));
            }
        };
        let before = self.variables.len();
        let item = if matches!(range, Type::Map(_)) { key.clone() } else { value.clone() };
        match it.variables.as_slice() {
            [first, second] => {
                self.variables.push((first.clone(), key));
                self.variables.push((second.clone(), value));
            }
            [only, ..] => self.variables.push((only.clone(), item.clone())),
            [] => {}
        }
        let result = self.body(it, &item);
        self.variables.truncate(before);
        result
    }

    fn body(&mut self, it: &mut Comprehension, item: &Type) -> Result<Type, Mistake> {
        if let Some(filter) = &mut it.filter {
            self.condition(filter)?;
        }
        match it.shape {
            Shape::All | Shape::Exists | Shape::ExistsOne => {
                self.condition(&mut it.body)?;
                Ok(Type::Bool)
            }
            Shape::Filter => {
                self.condition(&mut it.body)?;
                Ok(Type::list(item.clone()))
            }
            Shape::Map => Ok(Type::list(self.check(&mut it.body)?)),
            Shape::TransformMap => Ok(Type::Map(self.check(&mut it.body)?.into())),
            Shape::OptionalMap => Ok(Type::optional(self.check(&mut it.body)?)),
            Shape::OptionalFlatMap => match self.check(&mut it.body)? {
                of @ (Type::Optional(_) | Type::Dyn) => Ok(of),
                other => Err(no_overload(it.body.at, "optFlatMap", &[other])),
            },
        }
    }
}

fn of_literal(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::Text(_) => Type::Text,
        Literal::Bytes(_) => Type::Bytes,
    }
}

fn no_overload(at: usize, name: &str, given: &[Type]) -> Mistake {
    let given: Vec<String> = given.iter().map(Type::to_string).collect();
    Mistake::new(at, format!("found no matching overload for '{name}' applied to '({})'", given.join(", ")))
}

/// The one of two types that says less, of types that fit.
fn wider(one: Type, other: Type) -> Type {
    if matches!(one, Type::Null) || matches!(other, Type::Dyn) { other } else { one }
}

fn common(before: Option<Type>, found: Type) -> Type {
    match before {
        None => found,
        Some(before) if before.fits(&found) => wider(before, found),
        Some(_) => Type::Dyn,
    }
}

fn unwrapped(at: usize, of: Type) -> Result<Type, Mistake> {
    match of {
        Type::Optional(inner) => Ok((*inner).clone()),
        Type::Dyn => Ok(Type::Dyn),
        other => Err(Mistake::new(at, format!("expected type 'optional_type' but found '{other}'"))),
    }
}

fn select(at: usize, of: &Type, field: &str) -> Result<Type, Mistake> {
    match of {
        Type::Dyn => Ok(Type::Dyn),
        Type::Map(inner) => Ok((**inner).clone()),
        Type::Optional(inner) => select(at, inner, field),
        Type::Object(_) => {
            let found = of.field(field).map(|(_, of)| of.clone());
            found.ok_or_else(|| Mistake::new(at, format!("undefined field '{field}'")))
        }
        other => Err(Mistake::new(at, format!("type '{other}' does not support field selection"))),
    }
}

fn indexed(at: usize, of: &Type, by: &Type) -> Result<Type, Mistake> {
    let wrong = || no_overload(at, "_[_]", &[of.clone(), by.clone()]);
    match of {
        Type::Dyn => Ok(Type::Dyn),
        Type::Optional(inner) => indexed(at, inner, by),
        Type::List(list) if by.fits(&Type::Int) => Ok(list.element.clone()),
        Type::Map(inner) if matches!(by, Type::Text | Type::Int | Type::Uint | Type::Bool | Type::Dyn) => {
            Ok((**inner).clone())
        }
        _ => Err(wrong()),
    }
}

fn of_binary(at: usize, operator: Operator, left: Type, right: Type) -> Result<Type, Mistake> {
    let wrong = |left: Type, right: Type| Err(no_overload(at, operator.name(), &[left, right]));
    let numbers = left.is_number() && right.is_number();
    match operator {
        Operator::Equal | Operator::NotEqual if numbers || left.fits(&right) => Ok(Type::Bool),
        Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
            let ordered = |of: &Type| {
                matches!(of, Type::Bool | Type::Text | Type::Bytes | Type::Timestamp | Type::Duration | Type::Dyn)
                    || of.is_number()
            };
            if ordered(&left) && ordered(&right) && (numbers || left.fits(&right)) {
                Ok(Type::Bool)
            } else {
                wrong(left, right)
            }
        }
        Operator::In => match &right {
            Type::List(list) if list.element.fits(&left) || (list.element.is_number() && left.is_number()) => {
                Ok(Type::Bool)
            }
            Type::Map(_) if matches!(left, Type::Text | Type::Int | Type::Uint | Type::Bool | Type::Dyn) => {
                Ok(Type::Bool)
            }
            Type::Dyn => Ok(Type::Bool),
            _ => wrong(left, right),
        },
        Operator::Equal | Operator::NotEqual => wrong(left, right),
        _ => match (&left, &right) {
            (Type::Dyn, _) => Ok(if matches!(right, Type::Timestamp | Type::Duration) { Type::Dyn } else { right }),
            (_, Type::Dyn) => Ok(if matches!(left, Type::Timestamp | Type::Duration) { Type::Dyn } else { left }),
            (Type::Int, Type::Int) | (Type::Uint, Type::Uint) => Ok(left),
            (Type::Double, Type::Double) if operator != Operator::Modulo => Ok(left),
            (Type::Text, Type::Text) | (Type::Bytes, Type::Bytes) if operator == Operator::Add => Ok(left),
            (Type::List(one), Type::List(other)) if operator == Operator::Add && one.element.fits(&other.element) => {
                Ok(if matches!(one.element, Type::Dyn) { right } else { left })
            }
            (Type::Timestamp, Type::Duration) if matches!(operator, Operator::Add | Operator::Subtract) => Ok(left),
            (Type::Duration, Type::Timestamp) if operator == Operator::Add => Ok(right),
            (Type::Duration, Type::Duration) if matches!(operator, Operator::Add | Operator::Subtract) => Ok(left),
            (Type::Timestamp, Type::Timestamp) if operator == Operator::Subtract => Ok(Type::Duration),
            _ => wrong(left, right),
        },
    }
}
