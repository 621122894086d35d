use super::*;

#[test]
fn placeholder_text_passes() {
    let mut parser = ReplyParser::new(ToolFamily::Hermes, None);
    assert_eq!(parser.feed("Hello"), [Part::Text("Hello".to_owned())]);
}
