//! What a check of arguments by a JSON Schema would cost, found out before it is made.
//!
//! A schema of a few hundred bytes can refer to itself so that checking `{}` takes longer than the machine lives, or
//! goes so deep that the stack ends. The library that checks has no limit, and can't be stopped; it runs on the
//! daemon's only thread. So the walk that it would take is counted first, each pair of a subschema and a value once.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

/// How many subschemas a check may look at, a pattern for ten.
const STEPS: u64 = 100_000;
const PATTERN: u64 = 10;
/// How deep a check may go, in subschemas.
const DEPTH: usize = 400;

/// Keywords whose value is data and holds no schema.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords that lead elsewhere in the schema.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// What a property's name is taken for: a value without members.
const NAME: &Value = &Value::Null;

/// The walk's limit was reached.
struct TooMuch;

/// Looks whether all references of a schema lead to where the walk can follow them.
///
/// # Errors
/// The first that does not, or a part with an address of its own, in words.
pub fn followable(schema: &Value) -> Result<(), String> {
    let walk = Walk::new(schema);
    let mut todo = vec![schema];
    while let Some(value) = todo.pop() {
        match value {
            Value::Object(map) => {
                if !std::ptr::eq(value, schema)
                    && let Some(Value::String(id)) = map.get("$id")
                {
                    return Err(format!(
                        "a part of it has an address of its own, {id:?}; only \"#/…\" can be followed"
                    ));
                }
                for (key, member) in map {
                    match member {
                        Value::String(target)
                            if REFERENCES.contains(&key.as_str()) && walk.targets(target).is_empty() =>
                        {
                            return Err(format!(
                                "{key} {target:?} leads to nothing in it; nothing is fetched"
                            ));
                        }
                        member if !DATA.contains(&key.as_str()) => todo.push(member),
                        _ => {}
                    }
                }
            }
            Value::Array(items) => todo.extend(items),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a check of these arguments keeps within the limits.
pub fn bearable(schema: &Value, arguments: &Value) -> bool {
    Walk::new(schema).cost(schema, arguments).is_ok()
}

struct Walk<'a> {
    root: &'a Value,
    anchors: BTreeMap<&'a str, Vec<&'a Value>>,
    /// What is known of a subschema and a value, by their addresses; nothing yet while it is being found out.
    known: HashMap<(usize, usize), Option<u64>>,
    depth: usize,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value) -> Self {
        let mut anchors: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        let mut todo = vec![root];
        while let Some(value) = todo.pop() {
            match value {
                Value::Object(map) => {
                    for key in ["$anchor", "$dynamicAnchor"] {
                        if let Some(Value::String(name)) = map.get(key) {
                            anchors.entry(name).or_default().push(value);
                        }
                    }
                    todo.extend(map.values());
                }
                Value::Array(items) => todo.extend(items),
                _ => {}
            }
        }
        Self { root, anchors, known: HashMap::new(), depth: 0 }
    }

    /// Where a reference may lead.
    fn targets(&self, reference: &str) -> Vec<&'a Value> {
        let own = self.root.get("$id").and_then(Value::as_str);
        let inside =
            own.and_then(|own| reference.strip_prefix(own.trim_end_matches('#'))).unwrap_or(reference);
        match inside.strip_prefix('#').map(unescaped) {
            None if inside.is_empty() && own.is_some() => vec![self.root],
            None => Vec::new(),
            Some(place) if place.is_empty() => vec![self.root],
            Some(place) if place.starts_with('/') => self.root.pointer(&place).into_iter().collect(),
            Some(name) => self.anchors.get(name.as_str()).cloned().unwrap_or_default(),
        }
    }

    /// How many subschemas are looked at when this one checks this value.
    fn cost(&mut self, schema: &'a Value, value: &'a Value) -> Result<u64, TooMuch> {
        let Value::Object(map) = schema else { return Ok(1) };
        let pair = (std::ptr::from_ref(schema).addr(), std::ptr::from_ref(value).addr());
        match self.known.get(&pair) {
            Some(Some(cost)) => return Ok(*cost),
            // it needs itself to check the same value: there is no end
            Some(None) => return Err(TooMuch),
            None => {}
        }
        if self.depth >= DEPTH || u64::try_from(self.known.len()).unwrap_or(u64::MAX) >= STEPS {
            return Err(TooMuch);
        }
        self.known.insert(pair, None);
        self.depth += 1;
        let mut cost = 1;
        for (keyword, argument) in map {
            cost = within(cost, self.keyword(keyword, argument, value)?)?;
        }
        // these look at their neighbours' subschemas again, and at those of these
        if map.contains_key("unevaluatedProperties") || map.contains_key("unevaluatedItems") {
            cost = within(cost, cost.saturating_mul(2))?;
        }
        self.depth -= 1;
        self.known.insert(pair, Some(cost));
        Ok(cost)
    }

    fn keyword(&mut self, keyword: &str, argument: &'a Value, value: &'a Value) -> Result<u64, TooMuch> {
        match (keyword, argument, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference), _) => {
                self.all(self.targets(reference).into_iter().map(|target| (target, value)))
            }
            ("not" | "if" | "then" | "else", argument, _) => self.cost(argument, value),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas), _) => {
                self.all(schemas.iter().map(|schema| (schema, value)))
            }
            ("dependentSchemas" | "dependencies", Value::Object(schemas), _) => {
                self.all(schemas.values().map(|schema| (schema, value)))
            }
            ("pattern", _, Value::String(_)) => Ok(PATTERN),
            (_, argument, Value::Object(members)) => self.of_object(keyword, argument, members),
            (_, argument, Value::Array(items)) => self.of_array(keyword, argument, items),
            _ => Ok(0),
        }
    }

    fn of_object(
        &mut self,
        keyword: &str,
        argument: &'a Value,
        members: &'a Map<String, Value>,
    ) -> Result<u64, TooMuch> {
        match (keyword, argument) {
            ("properties", Value::Object(schemas)) => {
                let both = schemas.iter().filter_map(|(name, schema)| Some((schema, members.get(name)?)));
                self.all(both)
            }
            ("patternProperties", Value::Object(schemas)) => {
                let patterns = count(schemas.len()).saturating_mul(count(members.len()));
                let each =
                    members.values().flat_map(|value| schemas.values().map(move |schema| (schema, value)));
                within(patterns.saturating_mul(PATTERN), self.all(each)?)
            }
            ("additionalProperties" | "unevaluatedProperties", schema) => {
                self.all(members.values().map(|value| (schema, value)))
            }
            ("propertyNames", schema) => self.all(members.keys().map(|_| (schema, NAME))),
            _ => Ok(0),
        }
    }

    fn of_array(&mut self, keyword: &str, argument: &'a Value, items: &'a [Value]) -> Result<u64, TooMuch> {
        match (keyword, argument) {
            ("items" | "prefixItems", Value::Array(schemas)) => self.all(schemas.iter().zip(items)),
            ("items" | "additionalItems" | "contains" | "unevaluatedItems", schema) => {
                self.all(items.iter().map(|value| (schema, value)))
            }
            _ => Ok(0),
        }
    }

    fn all(&mut self, pairs: impl Iterator<Item = (&'a Value, &'a Value)>) -> Result<u64, TooMuch> {
        let mut sum = 0;
        for (schema, value) in pairs {
            sum = within(sum, self.cost(schema, value)?)?;
        }
        Ok(sum)
    }
}

fn within(sum: u64, more: u64) -> Result<u64, TooMuch> {
    Some(sum.saturating_add(more)).filter(|sum| *sum <= STEPS).ok_or(TooMuch)
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// `%41` is `A`; what is no such escape stays.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Definitions that lead from one to the next by `how`, as `often` as said, the last to `end`.
    fn chain(length: usize, how: &str, often: usize, end: Value) -> Value {
        let next = |n: usize| {
            (format!("d{n}"), json!({how: vec![json!({"$ref": format!("#/$defs/d{}", n + 1)}); often]}))
        };
        let mut places: Map<String, Value> = (0..length).map(next).collect();
        places.insert(format!("d{length}"), end);
        json!({"$ref": "#/$defs/d0", "$defs": places})
    }

    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!({}), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn what_would_take_for_ever_or_end_the_stack_is_seen() {
        for how in ["allOf", "anyOf", "oneOf"] {
            assert!(!bearable(&chain(40, how, 2, json!({"type": "object"})), &json!({})), "{how}");
            assert!(bearable(&chain(10, how, 2, json!({"type": "object"})), &json!({})), "{how}");
        }
        let again = json!({"properties": {"a": {"$ref": "#/$defs/d0"}}});
        assert!(!bearable(&chain(100, "allOf", 1, again.clone()), &nested(60)));
        assert!(bearable(&chain(2, "allOf", 1, again), &nested(60)));
        let twice = json!({"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}});
        assert!(!bearable(&twice, &nested(30)) && bearable(&twice, &nested(5)));
        let circle = json!({"anyOf": [{"$ref": "#"}, {"type": "object"}]});
        assert!(!bearable(&circle, &json!({})));
        let mut unevaluated = json!({"required": ["x"]});
        for _ in 0..30 {
            unevaluated = json!({"anyOf": [unevaluated], "unevaluatedProperties": false});
        }
        assert!(!bearable(&unevaluated, &json!({})));
        let list = json!({"properties": {"a": {"items": {"pattern": "x"}}}});
        assert!(!bearable(&list, &json!({"a": vec!["x"; 10_000]})));
        assert!(bearable(&list, &json!({"a": vec!["x"; 1000]})));
    }

    #[test]
    fn usual_schemas_that_refer_to_themselves_are_fine() {
        let side = json!({"$ref": "#/$defs/term"});
        let kind = |name: &str| json!({"type": "object", "properties": {"op": {"const": name}, "left": side, "right": side}});
        let kinds = ["add", "sub", "mul", "div"].map(kind);
        let terms = json!({"$ref": "#/$defs/term", "$defs": {"term": {"anyOf": kinds}}});
        let deep = (0..4).fold(
            json!({"op": "add"}),
            |inner, _| json!({"op": "mul", "left": inner, "right": {"op": "sub"}}),
        );
        assert!(bearable(&terms, &deep));
        let tree =
            json!({"$dynamicAnchor": "node", "properties": {"kids": {"items": {"$dynamicRef": "#node"}}}});
        assert!(followable(&tree).is_ok());
        assert!(bearable(&tree, &json!({"kids": [{"kids": [{}, {}]}, {"kids": []}]})));
        let own = json!({"$id": "http://example.org/x", "$ref": "http://example.org/x#/$defs/a%20b", "$defs": {"a b": {}}});
        assert_eq!(followable(&own), Ok(()));
    }

    #[test]
    fn a_reference_that_cannot_be_followed_is_told() {
        for (schema, says) in [
            (json!({"$ref": "#/$defs/none"}), "\"#/$defs/none\" leads to nothing"),
            (json!({"items": [{"$ref": "other.json"}]}), "\"other.json\" leads to nothing"),
            (json!({"$defs": {"a": {"$id": "b"}}}), "address of its own"),
        ] {
            let why = followable(&schema).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        let data =
            json!({"properties": {"$ref": {"type": "string"}, "a": {"const": {"$ref": "x", "$id": "y"}}}});
        assert_eq!(followable(&data), Ok(()));
    }
}
