//! What a tool of a server answered, as text for the model.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use super::super::arguments::kind;

/// The text of a result: what cannot be shown is named.
pub fn text(result: &CallToolResult) -> String {
    let mut parts: Vec<String> = result.content.iter().map(block).collect();
    // a tool that has both says the same twice
    if let (true, Some(value)) = (parts.is_empty(), &result.structured_content) {
        parts.push(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    if parts.is_empty() { "No output.".to_owned() } else { parts.join("\n") }
}

fn block(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => left_out("an image", &image.mime_type, image.data.len()),
        ContentBlock::Audio(audio) => left_out("a sound", &audio.mime_type, audio.data.len()),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[{uri}]\n{text}"),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let kind = mime_type.as_deref().unwrap_or("of unknown kind");
                left_out(uri, kind, blob.len())
            }
            _ => "[a resource of a kind that loopd does not know]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[link: {} {}]", link.name, link.uri),
        _ => "[something of a kind that loopd does not know]".to_owned(),
    }
}

/// `base64` is the length of what stands for the bytes.
fn left_out(what: &str, mime_type: &str, base64: usize) -> String {
    format!("[{what}, {mime_type}, about {} bytes, which cannot be shown]", base64 / 4 * 3)
}

/// A schema as the registry takes it; some servers leave out that it is of an object.
pub fn schema(mut schema: serde_json::Map<String, serde_json::Value>) -> Result<serde_json::Value, String> {
    match schema.get("type") {
        None => {
            schema.insert("type".to_owned(), "object".into());
        }
        Some(serde_json::Value::String(text)) if text == "object" => {}
        Some(other) => return Err(format!("its arguments are {} ({other})", kind(other))),
    }
    Ok(serde_json::Value::Object(schema))
}
