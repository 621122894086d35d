//! The JSON Schema of a tool's arguments, in the author's own order of keys.

use toml::de::{DeTable, DeValue};

/// The longest schema, in bytes of JSON.
pub const MAX_SCHEMA_BYTES: usize = 16_384;

pub(super) const ALLOWED_SCHEMA: &str =
    "allowed is a JSON Schema with type = \"object\", as a table or as a string of JSON";

/// What a tool's arguments must look like: as text, which is what the model is shown, and as a value.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    text: String,
    value: serde_json::Value,
}

impl Default for ToolSchema {
    fn default() -> Self {
        let value = serde_json::json!({
            "type": "object", "properties": {}, "additionalProperties": false,
        });
        Self { text: r#"{"type":"object","properties":{},"additionalProperties":false}"#.to_owned(), value }
    }
}

impl ToolSchema {
    /// The schema as JSON, its keys in the order of the file.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.text
    }

    /// The schema as a value.
    #[must_use]
    pub const fn value(&self) -> &serde_json::Value {
        &self.value
    }

    /// A schema from JSON text.
    ///
    /// # Errors
    /// Why it is none.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(format!("the schema is longer than {MAX_SCHEMA_BYTES} bytes"));
        }
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| format!("the schema is not JSON: {e}"))?;
        match value.get("type").and_then(serde_json::Value::as_str) {
            Some("object") => Ok(Self { text: text.to_owned(), value }),
            _ => Err("the schema is not one of an object".to_owned()),
        }
    }

    /// A schema from TOML, as a table or as a string of JSON.
    pub(super) fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::String(text) => Self::from_json(text),
            DeValue::Table(table) => {
                let mut text = String::new();
                write_table(table, &mut text)?;
                Self::from_json(&text)
            }
            _ => Err("found neither a table nor a string".to_owned()),
        }
    }
}

fn write_string(text: &str, json: &mut String) -> Result<(), String> {
    json.push_str(&serde_json::to_string(text).map_err(|e| e.to_string())?);
    Ok(())
}

fn write_table(table: &DeTable<'_>, json: &mut String) -> Result<(), String> {
    // The map is sorted by name; the places tell the order in which they were written.
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    json.push('{');
    for (n, (key, value)) in entries.into_iter().enumerate() {
        if n > 0 {
            json.push(',');
        }
        write_string(key.get_ref(), json)?;
        json.push(':');
        write_value(value.get_ref(), json)?;
    }
    json.push('}');
    Ok(())
}

fn write_value(value: &DeValue<'_>, json: &mut String) -> Result<(), String> {
    match value {
        DeValue::String(text) => write_string(text, json)?,
        DeValue::Boolean(flag) => json.push_str(if *flag { "true" } else { "false" }),
        DeValue::Integer(n) => match i64::from_str_radix(n.as_str(), n.radix()) {
            Ok(n) => json.push_str(&n.to_string()),
            Err(_) => return Err(format!("the schema has a number out of range: {n}")),
        },
        DeValue::Float(n) => match n.as_str().parse::<f64>() {
            Ok(n) if n.is_finite() => json.push_str(&serde_json::to_string(&n).map_err(|e| e.to_string())?),
            _ => return Err(format!("the schema has a number that JSON does not know: {n}")),
        },
        DeValue::Datetime(_) => return Err("the schema has a time, which JSON does not know".to_owned()),
        DeValue::Array(items) => {
            json.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    json.push(',');
                }
                write_value(item.get_ref(), json)?;
            }
            json.push(']');
        }
        DeValue::Table(table) => write_table(table, json)?,
    }
    Ok(())
}
