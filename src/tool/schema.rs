//! Arguments against a tool's JSON Schema, with errors in words that a small model can act on.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

use super::arguments::kind;
use super::cost;
use super::excerpt::beginning;

/// How many errors are told at once.
const ERRORS_TOLD: usize = 4;
/// How many characters of a wrong value, or of what is allowed, are told.
const VALUE_CHARS: usize = 80;
/// Arguments longer than this (bytes) are told their first error only: the list of all could be many times
/// as long as the arguments.
const ALL_ERRORS_BYTES: usize = 16 * 1024;
/// How many steps back a schema's `pattern` may take before the arguments count as not fitting.
const PATTERN_STEPS: usize = 20_000;

/// A compiled schema.
pub struct Checker {
    validator: Validator,
    schema: Value,
}

impl Checker {
    /// Compiles a schema. References that lead out of it are errors: nothing is fetched or read.
    ///
    /// # Errors
    /// Why it is not a schema, in words.
    pub fn new(schema: &Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err(format!("the schema is {}; an object is allowed", kind(schema)));
        }
        cost::followable(schema)?;
        let validator = jsonschema::options()
            .offline()
            .with_pattern_options(PatternOptions::fancy_regex().backtrack_limit(PATTERN_STEPS))
            .build(schema)
            .map_err(|e| e.to_string())?;
        Ok(Self { validator, schema: schema.clone() })
    }

    /// Checks arguments of a text of `bytes` bytes.
    ///
    /// # Errors
    /// What does not fit: where, what was found, what is allowed; one line each.
    pub fn check(&self, arguments: &Map<String, Value>, bytes: usize) -> Result<(), String> {
        let value = Value::Object(arguments.clone());
        if !cost::bearable(&self.schema, &value) {
            return Err("the tool's schema refers to itself too often, or the arguments are too many or too deep, to be \
                        checked; give fewer and flatter ones"
                .to_owned());
        }
        let Err(first) = self.validator.validate(&value) else { return Ok(()) };
        if bytes > ALL_ERRORS_BYTES {
            return Err(words(&first));
        }
        let mut lines: Vec<String> = self.validator.iter_errors(&value).map(|error| words(&error)).collect();
        lines.dedup();
        let more = lines.len().saturating_sub(ERRORS_TOLD);
        lines.truncate(ERRORS_TOLD);
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        Err(lines.join("\n"))
    }
}

/// One error: where, what was found, what is allowed.
fn words(error: &ValidationError<'_>) -> String {
    let path = error.instance_path().as_str();
    let place = if path.is_empty() { "the arguments".to_owned() } else { path.to_owned() };
    let found = || short(error.instance());
    match error.kind() {
        ValidationErrorKind::Required { property } => format!("{place}: {property} is missing"),
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            let names: Vec<String> = unexpected.iter().map(|name| format!("{name:?}")).collect();
            format!("{place}: {} not allowed here", beginning(&names.join(", "), VALUE_CHARS))
        }
        ValidationErrorKind::Type { kind: wanted } => {
            format!(
                "{place}: found {} ({}); allowed: {}",
                found(),
                kind(error.instance()),
                type_words(wanted)
            )
        }
        ValidationErrorKind::Enum { options } => {
            let options = match options.as_array() {
                Some(options) => options.iter().map(Value::to_string).collect::<Vec<_>>().join(", "),
                None => options.to_string(),
            };
            format!("{place}: found {}; allowed: one of {}", found(), beginning(&options, VALUE_CHARS))
        }
        ValidationErrorKind::Constant { expected_value } => {
            format!("{place}: found {}; allowed: only {}", found(), short(expected_value))
        }
        ValidationErrorKind::Minimum { limit } => {
            format!("{place}: found {}; allowed: at least {limit}", found())
        }
        ValidationErrorKind::Maximum { limit } => {
            format!("{place}: found {}; allowed: at most {limit}", found())
        }
        ValidationErrorKind::MinLength { limit } => {
            format!("{place}: found {}; allowed: at least {limit} characters", found())
        }
        ValidationErrorKind::MaxLength { limit } => {
            format!("{place}: found {}; allowed: at most {limit} characters", found())
        }
        ValidationErrorKind::Pattern { pattern } => {
            format!(
                "{place}: found {}; allowed: text that matches {}",
                found(),
                beginning(pattern, VALUE_CHARS)
            )
        }
        ValidationErrorKind::Format { format } => {
            format!("{place}: found {}; allowed: text of the form {format:?}", found())
        }
        ValidationErrorKind::FalseSchema => format!("{place}: found {}; nothing is allowed here", found()),
        // the library's words, with the value left out, which may be as long as all arguments
        _ => format!(
            "{place}: found {}; {}",
            found(),
            beginning(&error.masked_with("it").to_string(), VALUE_CHARS)
        ),
    }
}

fn type_words(wanted: &TypeKind) -> String {
    match wanted {
        TypeKind::Single(one) => one.to_string(),
        TypeKind::Multiple(set) => set.iter().map(|one| one.to_string()).collect::<Vec<_>>().join(" or "),
    }
}

fn short(value: &Value) -> String {
    beginning(&value.to_string(), VALUE_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(schema: &Value, arguments: &str) -> String {
        let object = super::super::arguments::object(arguments).unwrap();
        Checker::new(schema).unwrap().check(&object, arguments.len()).unwrap_err()
    }

    #[test]
    fn says_where_what_was_found_and_what_is_allowed() {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]*$"},
                "unit": {"enum": ["c", "f"]},
                "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
                "list": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                "only": {"const": true},
                "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                "never": false
            },
            "required": ["path"],
            "additionalProperties": false
        });
        for (arguments, says) in [
            ("{}", "the arguments: \"path\" is missing"),
            (r#"{"path":"a","way":1}"#, "the arguments: \"way\" not allowed here"),
            (r#"{"path":7}"#, "/path: found 7 (a number); allowed: string"),
            (r#"{"path":""}"#, "/path: found \"\"; allowed: at least 1 characters"),
            (r#"{"path":"abcdef"}"#, "/path: found \"abcdef\"; allowed: at most 5 characters"),
            (r#"{"path":"A"}"#, "/path: found \"A\"; allowed: text that matches ^[a-z]*$"),
            (r#"{"path":"a","unit":"k"}"#, "/unit: found \"k\"; allowed: one of \"c\", \"f\""),
            (r#"{"path":"a","n":"2"}"#, "/n: found \"2\" (a string); allowed: null or integer"),
            (r#"{"path":"a","n":0}"#, "/n: found 0; allowed: at least 1"),
            (r#"{"path":"a","n":10}"#, "/n: found 10; allowed: at most 9"),
            (r#"{"path":"a","list":["x",2]}"#, "/list/1: found 2 (a number); allowed: string"),
            (r#"{"path":"a","only":1}"#, "/only: found 1; allowed: only true"),
            (r#"{"path":"a","never":1}"#, "/never: found 1; nothing is allowed here"),
        ] {
            assert_eq!(told(&schema, arguments), says, "{arguments}");
        }
        let other = told(&schema, r#"{"path":"a","list":["x","y","z"]}"#);
        assert!(other.starts_with("/list: found [\"x\",\"y\",\"z\"]; it has more than 2 items"), "{other}");
        let other = told(&schema, r#"{"path":"a","either":[]}"#);
        assert!(other.starts_with("/either: found []; it is not valid"), "{other}");
    }

    #[test]
    fn tells_several_errors_but_a_bounded_number_of_bounded_length() {
        let schema = json!({"properties": {"a": {"items": {"type": "string"}}}});
        let arguments = format!("{{\"a\":[{}1]}}", "1,".repeat(99));
        let text = told(&schema, &arguments);
        assert_eq!(text.lines().count(), 5);
        assert!(text.ends_with("and 96 more"), "{text}");
        let long = format!("{{\"a\":[{}1]}}", "1,".repeat(200_000));
        assert_eq!(told(&schema, &long).lines().count(), 1);
        let value = format!("{{\"a\":[[\"{}\"]]}}", "é".repeat(1000));
        assert!(told(&schema, &value).len() < 400);
    }

    #[test]
    fn a_schema_may_refer_to_itself() {
        let tree = json!({"properties": {"kids": {"items": {"$ref": "#"}}, "n": {"type": "number"}}});
        assert_eq!(
            told(&tree, r#"{"kids":[{"kids":[{"n":"x"}]}]}"#),
            "/kids/0/kids/0/n: found \"x\" (a string); allowed: number"
        );
        for circle in [json!({"$ref": "#"}), json!({"allOf": [{"$ref": "#"}]}), json!({"not": {"$ref": "#"}})]
        {
            if let Ok(checker) = Checker::new(&circle) {
                let _either = checker.check(&Map::new(), 2);
            }
        }
    }

    #[test]
    fn a_schema_cannot_fetch_read_or_spin() {
        for schema in [
            json!({"$ref": "http://127.0.0.1:9/x.json"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"type": "no such type"}),
            json!({"properties": {"a": {"pattern": "("}}}),
            json!(true),
            json!("x"),
        ] {
            assert!(Checker::new(&schema).is_err(), "{schema}");
        }
        let slow = json!({"properties": {"a": {"pattern": "^(a|a)*\\1(?=b)$"}}});
        let began = std::time::Instant::now();
        told(&slow, &format!("{{\"a\":\"{}\"}}", "a".repeat(60)));
        assert!(began.elapsed() < std::time::Duration::from_secs(5));
    }
}
