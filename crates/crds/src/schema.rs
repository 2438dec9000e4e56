//! A builder of structural schemas, as far as these kinds need one.

use serde_json::{Map, Value, json};

const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The schema of one value.
#[derive(Debug, Clone)]
pub(crate) struct Schema(Map<String, Value>);

impl Schema {
    fn of(kind: &str, says: &str) -> Self {
        Self(Map::new()).with("type", kind).with("description", says)
    }

    /// Fields, which follow.
    pub fn object(says: &str) -> Self {
        Self::of("object", says)
    }

    /// A text.
    pub fn string(says: &str) -> Self {
        Self::of("string", says)
    }

    /// Yes or no.
    pub fn boolean(says: &str) -> Self {
        Self::of("boolean", says)
    }

    /// A whole number of 64 bits.
    pub fn integer(says: &str) -> Self {
        Self::of("integer", says).with("format", "int64")
    }

    /// A moment, as RFC 3339 writes it.
    pub fn time(says: &str) -> Self {
        Self::of("string", says).with("format", "date-time")
    }

    /// A Kubernetes quantity, as text.
    pub fn quantity(says: &str) -> Self {
        Self::of("string", says).with("pattern", QUANTITY).with("x-kubernetes-int-or-string", true)
    }

    /// One of these texts.
    pub fn choice(says: &str, texts: &[&str]) -> Self {
        Self::of("string", says).with("enum", json!(texts))
    }

    /// A list.
    pub fn list(says: &str, items: Self) -> Self {
        Self::of("array", says).with("items", items.0)
    }

    /// Texts by name.
    pub fn map(says: &str) -> Self {
        Self::of("object", says).with("additionalProperties", json!({"type": "string"}))
    }

    /// Of a list's items, of which there is nothing to say.
    pub fn silent(mut self) -> Self {
        self.0.remove("description");
        self
    }

    /// With a field.
    pub fn field(mut self, name: &str, schema: Self) -> Self {
        self.0.entry("properties").or_insert_with(|| json!({}))[name] = Value::Object(schema.0);
        self
    }

    /// With fields that must be there.
    pub fn required(self, names: &[&str]) -> Self {
        self.with("required", json!(names))
    }

    /// With anything else that a schema may say.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// With a rule in CEL, and what is said to who breaks it.
    pub fn rule(mut self, rule: &str, message: &str) -> Self {
        let rules = self.0.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Value::Array(rules) = rules {
            rules.push(json!({"rule": rule, "message": message}));
        }
        self
    }

    /// Once set, a value stays as it is. That it stays at all is a rule of what is around it.
    pub fn immutable(self, name: &str) -> Self {
        self.rule("self == oldSelf", &format!("{name} cannot be changed; make a new object instead"))
    }

    /// Exactly one of two fields is set, and stays set.
    pub fn one_of(self, one: &str, other: &str) -> Self {
        self.stays(one)
            .stays(other)
            .rule(&format!("has(self.{one}) != has(self.{other})"), &format!("set exactly one of {one} and {other}"))
    }

    /// A field that was set stays set.
    pub fn stays(self, name: &str) -> Self {
        let rule = format!("!has(oldSelf.{name}) || has(self.{name})");
        self.rule(&rule, &format!("{name} cannot be removed; make a new object instead"))
    }

    /// With what older versions lack.
    pub fn when(self, so: bool, more: impl FnOnce(Self) -> Self) -> Self {
        if so { more(self) } else { self }
    }

    /// What is said of the field at a path such as `.spec.driver`.
    pub fn says_of(&self, path: &str) -> Option<&str> {
        let mut names = path.split('.').filter(|name| !name.is_empty());
        let first = self.0.get("properties")?.get(names.next()?)?;
        let schema = names.try_fold(first, |schema, name| schema.get("properties")?.get(name))?;
        schema.get("description")?.as_str()
    }
}

impl From<Schema> for Value {
    fn from(schema: Schema) -> Self {
        Self::Object(schema.0)
    }
}

/// A reference to an object, of which only some fields are used here.
pub(crate) fn reference(says: &str) -> Schema {
    Schema::object(says)
        .field("apiVersion", Schema::string("Group and version of the object."))
        .field("fieldPath", Schema::string("A part of the object. Not used."))
        .field("kind", Schema::string("Kind of the object."))
        .field("name", Schema::string("Name of the object."))
        .field("namespace", Schema::string("Namespace of the object."))
        .field("resourceVersion", Schema::string("The version of the object that was meant. Not used."))
        .field("uid", Schema::string("Uid of the object. Without one, the first object of that name may take it."))
}

/// What went wrong last.
pub(crate) fn error() -> Schema {
    let says = "What went wrong when this was last tried. It goes away by itself once a try succeeds.";
    Schema::object(says)
        .field("message", Schema::string("What went wrong. It may be shown to others, so it holds no secrets."))
        .field("time", Schema::time("When it was seen."))
}

/// Whether what is in the driver outlives its object.
pub(crate) fn deletion_policy(says: &str) -> Schema {
    Schema::choice(says, &["Delete", "Retain"])
}

/// Which objects are meant, by their labels.
pub(crate) fn label_selector(says: &str) -> Schema {
    let values =
        "What the label's value is held against. Empty for Exists and DoesNotExist, not empty for In and NotIn.";
    let values = Schema::list(values, Schema::string("").silent()).with("x-kubernetes-list-type", "atomic");
    let expression = Schema::object("One condition on one label.")
        .field("key", Schema::string("Name of the label."))
        .field("operator", Schema::string("In, NotIn, Exists or DoesNotExist."))
        .field("values", values)
        .required(&["key", "operator"]);
    let expressions = Schema::list("Conditions on labels, all of which must hold.", expression);
    Schema::object(says)
        .field("matchExpressions", expressions.with("x-kubernetes-list-type", "atomic"))
        .field("matchLabels", Schema::map("Labels with these very values, all of them."))
        .with("x-kubernetes-map-type", "atomic")
}
