//! Reading an expression, with bounds on its length and depth.

use super::Mistake;
use super::lex::{Token, words};
use super::syntax::{Comprehension, Expr, Literal, Node, Operator, Shape};

/// As upstream's limit on characters.
const MAX_LENGTH: usize = 100_000;
/// Parts inside each other: what reads, checks and evaluates an expression recurses so deep, on stacks of 2 MiB.
const MAX_DEPTH: usize = 100;
/// Parts of `a + b + c` and `a.b.c` count as beside each other there, and here with all the others: going down the left
/// side takes little of a stack. Upstream's parser goes down 250.
const MAX_HEIGHT: usize = 500;

const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

struct Parser {
    words: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
}

/// Reads a whole text.
pub(super) fn parse(text: &str) -> Result<Expr, Mistake> {
    if text.len() > MAX_LENGTH {
        return Err(Mistake::new(
            0,
            format!("an expression may have {MAX_LENGTH} bytes, and this one has {}", text.len()),
        ));
    }
    let mut parser = Parser { words: words(text)?, next: 0, depth: 0 };
    let expr = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(expr),
        _ => Err(parser.unexpected()),
    }
}

fn too_deep(at: usize) -> Mistake {
    let why = format!(
        "an expression may have {MAX_DEPTH} levels of parts inside each other, and {MAX_HEIGHT} with those of chains such as \
         a + b + c or a.b.c; make two rules of it"
    );
    Mistake::new(at, why)
}

fn expr(at: usize, node: Node) -> Result<Expr, Mistake> {
    let mut expr = Expr { at, node, depth: 0, height: 0 };
    let mut inside: Vec<&Expr> = match &expr.node {
        Node::Literal(_) | Node::Name(_) => Vec::new(),
        Node::Select { operand, .. } | Node::Has { operand, .. } | Node::Not(operand) | Node::Negate(operand) => {
            vec![operand]
        }
        Node::Index { operand, index, .. } => vec![operand, index],
        Node::Call { arguments: all, .. } | Node::And(all) | Node::Or(all) => all.iter().collect(),
        Node::Conditional(parts) => parts.iter().collect(),
        Node::Binary(_, parts) => parts.iter().collect(),
        Node::List(all) => all.iter().map(|(element, _)| element).collect(),
        Node::Map(all) => all.iter().flat_map(|(key, value, _)| [key, value]).collect(),
        Node::Comprehension(it) => [&it.range, &it.body].into_iter().chain(&it.filter).collect(),
    };
    let height = inside.iter().map(|part| part.height).max().unwrap_or(0) + 1;
    let before = expr.before();
    // What it goes on from is the first of its parts.
    let rest = inside.split_off(usize::from(before.is_some()));
    let depth = rest.iter().map(|part| part.depth).max().unwrap_or(0) + 1;
    let depth = depth.max(before.map_or(0, |before| before.depth));
    if depth > MAX_DEPTH || height > MAX_HEIGHT {
        return Err(too_deep(at));
    }
    (expr.depth, expr.height) = (depth, height);
    Ok(expr)
}

/// How strongly an operator binds; `?:`, `||` and `&&` bind less than all of these.
fn binary(token: &Token) -> Option<(u8, Operator)> {
    Some(match token {
        Token::Sign("==") => (1, Operator::Equal),
        Token::Sign("!=") => (1, Operator::NotEqual),
        Token::Sign("<") => (1, Operator::Less),
        Token::Sign("<=") => (1, Operator::LessOrEqual),
        Token::Sign(">") => (1, Operator::Greater),
        Token::Sign(">=") => (1, Operator::GreaterOrEqual),
        Token::Name(name) if name == "in" => (1, Operator::In),
        Token::Sign("+") => (2, Operator::Add),
        Token::Sign("-") => (2, Operator::Subtract),
        Token::Sign("*") => (3, Operator::Multiply),
        Token::Sign("/") => (3, Operator::Divide),
        Token::Sign("%") => (3, Operator::Modulo),
        _ => return None,
    })
}

impl Parser {
    fn at(&self) -> usize {
        self.words.get(self.next).map_or(0, |(at, _)| *at)
    }

    fn peek(&self) -> &Token {
        self.words.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += usize::from(token != Token::End);
        token
    }

    fn is(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(found) if *found == sign);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), Mistake> {
        if self.is(sign) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> Mistake {
        let found = match self.peek() {
            Token::Name(name) => format!("'{name}'"),
            Token::Sign(sign) => format!("'{sign}'"),
            Token::Number(_) => "a number".to_owned(),
            Token::Text(_) | Token::Bytes(_) => "a text".to_owned(),
            Token::End => "<EOF>".to_owned(),
        };
        Mistake::new(self.at(), format!("Syntax error: {found} is not expected here"))
    }

    fn expression(&mut self) -> Result<Expr, Mistake> {
        self.deeper(self.at(), Self::conditional)
    }

    fn conditional(&mut self) -> Result<Expr, Mistake> {
        let at = self.at();
        let condition = self.chain(true)?;
        if !self.is("?") {
            return Ok(condition);
        }
        let then = self.chain(true)?;
        self.expect(":")?;
        let otherwise = self.expression()?;
        expr(at, Node::Conditional(Box::new([condition, then, otherwise])))
    }

    /// `a || b || c` of `a && b && c`: long ones are wide, not deep.
    fn chain(&mut self, or: bool) -> Result<Expr, Mistake> {
        let at = self.at();
        let part = |parser: &mut Self| if or { parser.chain(false) } else { parser.operators(1) };
        let mut parts = vec![part(self)?];
        while self.is(if or { "||" } else { "&&" }) {
            parts.push(part(self)?);
        }
        match parts.pop() {
            Some(only) if parts.is_empty() => Ok(only),
            last => {
                parts.extend(last);
                expr(at, if or { Node::Or(parts) } else { Node::And(parts) })
            }
        }
    }

    fn operators(&mut self, least: u8) -> Result<Expr, Mistake> {
        let mut left = self.unary()?;
        while let Some((strength, operator)) = binary(self.peek()).filter(|(strength, _)| *strength >= least) {
            let at = self.at();
            self.take();
            let right = self.operators(strength + 1)?;
            left = expr(at, Node::Binary(operator, Box::new([left, right])))?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, Mistake> {
        let at = self.at();
        if self.is("!") {
            let operand = self.deeper(at, Self::unary)?;
            return expr(at, Node::Not(operand.into()));
        }
        if !self.is("-") {
            let primary = self.primary()?;
            return self.members(primary);
        }
        let Token::Number(number) = self.peek().clone() else {
            let operand = self.deeper(at, Self::unary)?;
            return expr(at, Node::Negate(operand.into()));
        };
        self.take();
        let literal = number.literal(true).ok_or_else(|| Mistake::new(at, "invalid int literal"))?;
        let literal = expr(at, Node::Literal(literal))?;
        self.members(literal)
    }

    fn deeper<T>(&mut self, at: usize, part: fn(&mut Self) -> Result<T, Mistake>) -> Result<T, Mistake> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(too_deep(at));
        }
        let part = part(self)?;
        self.depth -= 1;
        Ok(part)
    }

    /// `.field`, `.method()`, `[index]` and their optional forms.
    fn members(&mut self, mut operand: Expr) -> Result<Expr, Mistake> {
        loop {
            let at = self.at();
            if self.is("[") {
                let optional = self.is("?");
                let index = self.expression()?;
                self.expect("]")?;
                operand = expr(at, Node::Index { operand: operand.into(), index: index.into(), optional })?;
            } else if self.is(".") {
                let optional = self.is("?");
                let named_at = self.at();
                let Token::Name(field) = self.peek().clone() else { return Err(self.unexpected()) };
                if matches!(field.as_str(), "in" | "true" | "false" | "null") {
                    return Err(self.unexpected());
                }
                self.take();
                operand = if !optional && self.is("(") {
                    let arguments = self.list(")", Self::expression)?;
                    method(at, operand, field, arguments)?
                } else {
                    expr(named_at.saturating_sub(1), Node::Select { operand: operand.into(), field, optional })?
                };
            } else {
                return Ok(operand);
            }
        }
    }

    /// Parts with commas between them up to `end`, which may have a comma before it.
    fn list<T>(&mut self, end: &str, part: fn(&mut Self) -> Result<T, Mistake>) -> Result<Vec<T>, Mistake> {
        let mut parts = Vec::new();
        while !self.is(end) {
            parts.push(part(self)?);
            if !self.is(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(parts)
    }

    fn primary(&mut self) -> Result<Expr, Mistake> {
        let at = self.at();
        let node = match self.peek().clone() {
            Token::Sign("(") => {
                self.take();
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign("[") => {
                self.take();
                Node::List(self.list("]", |parser| {
                    let optional = parser.is("?");
                    Ok((parser.expression()?, optional))
                })?)
            }
            Token::Sign("{") => {
                self.take();
                Node::Map(self.list("}", |parser| {
                    let optional = parser.is("?");
                    let key = parser.expression()?;
                    parser.expect(":")?;
                    Ok((key, parser.expression()?, optional))
                })?)
            }
            Token::Number(number) => {
                self.take();
                Node::Literal(number.literal(false).ok_or_else(|| Mistake::new(at, "invalid int literal"))?)
            }
            Token::Text(text) => {
                self.take();
                Node::Literal(Literal::Text(text))
            }
            Token::Bytes(bytes) => {
                self.take();
                Node::Literal(Literal::Bytes(bytes.into()))
            }
            Token::Name(name) => return self.name(at, name),
            Token::Sign(_) | Token::End => return Err(self.unexpected()),
        };
        expr(at, node)
    }

    fn name(&mut self, at: usize, name: String) -> Result<Expr, Mistake> {
        self.take();
        let node = match name.as_str() {
            "null" => Node::Literal(Literal::Null),
            "true" => Node::Literal(Literal::Bool(true)),
            "false" => Node::Literal(Literal::Bool(false)),
            "in" => return Err(Mistake::new(at, "Syntax error: 'in' is not expected here")),
            reserved if RESERVED.contains(&reserved) => {
                return Err(Mistake::new(at, format!("reserved identifier: {reserved}")));
            }
            "has" if self.is("(") => {
                let mut arguments = self.list(")", Self::expression)?;
                match (arguments.pop().map(|argument| argument.node), arguments.is_empty()) {
                    (Some(Node::Select { operand, field, optional: false }), true) => Node::Has { operand, field },
                    _ => return Err(Mistake::new(at, "invalid argument to has() macro")),
                }
            }
            _ if self.is("(") => Node::Call { name, method: false, arguments: self.list(")", Self::expression)? },
            _ => Node::Name(name),
        };
        expr(at, node)
    }
}

/// A call on a value: one of the macros, or a function.
fn method(at: usize, target: Expr, name: String, mut arguments: Vec<Expr>) -> Result<Expr, Mistake> {
    let count = arguments.len();
    let (shape, variables) = match (name.as_str(), count) {
        ("all", 2 | 3) => (Shape::All, count - 1),
        ("exists", 2 | 3) => (Shape::Exists, count - 1),
        ("exists_one" | "existsOne", 2 | 3) => (Shape::ExistsOne, count - 1),
        ("filter", 2) => (Shape::Filter, 1),
        ("map", 2 | 3) => (Shape::Map, 1),
        ("transformList", 3 | 4) => (Shape::Map, 2),
        ("transformMap", 3 | 4) => (Shape::TransformMap, 2),
        ("optMap", 2) => (Shape::OptionalMap, 1),
        ("optFlatMap", 2) => (Shape::OptionalFlatMap, 1),
        _ => {
            arguments.insert(0, target);
            return expr(at, Node::Call { name, method: true, arguments });
        }
    };
    let mut names = Vec::new();
    for argument in arguments.drain(..variables) {
        match argument.node {
            Node::Name(name) => names.push(name),
            _ => return Err(Mistake::new(argument.at, "argument must be a simple name")),
        }
    }
    if names.len() == 2 && names[0] == names[1] {
        return Err(Mistake::new(at, format!("duplicate variable name: {}", names[0])));
    }
    let (Some(body), filter) = (arguments.pop(), arguments.pop()) else {
        return Err(Mistake::new(at, format!("{name} needs more arguments")));
    };
    expr(at, Node::Comprehension(Box::new(Comprehension { shape, range: target, variables: names, filter, body })))
}
