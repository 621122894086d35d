//! The built-in `time` tool: the only clock that the model can read, so that none is in the prompt.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};
use serde_json::json;

use super::{CallContext, Tool, ToolDescription, ToolFuture, ToolReply};

/// Tells the date and the time, in UTC and, where the machine has a time zone, in that.
#[derive(Debug, Clone, Copy, Default)]
pub struct Time;

impl Tool for Time {
    fn name(&self) -> &'static str {
        "time"
    }

    fn describe(&self) -> ToolDescription {
        ToolDescription {
            text: "Tells the current date, weekday and time (clock, today, now, timezone).".to_owned(),
            schema: json!({"type": "object", "properties": {}, "additionalProperties": false}),
        }
    }

    fn schema_is_proven(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, _arguments: &'a str, _context: CallContext) -> ToolFuture<'a> {
        Box::pin(async { ToolReply::ok(tell(Timestamp::now(), TimeZone::try_system().ok())) })
    }
}

fn tell(now: Timestamp, zone: Option<TimeZone>) -> String {
    let words = |at: &ZonedDateTime| at.strftime("%A %Y-%m-%d %H:%M:%S").to_string();
    let mut text = format!("{} UTC", words(&now.to_zoned_datetime(TimeZone::UTC)));
    if let Some(zone) = zone.filter(|zone| !zone.is_unknown() && *zone != TimeZone::UTC) {
        let local = now.to_zoned_datetime(zone);
        let name = local.time_zone().iana_name().map(|name| format!(", {name}")).unwrap_or_default();
        text.push_str(&format!("\n{} local (UTC{}{name})", words(&local), local.strftime("%:z")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_utc_and_the_local_offset() {
        let now: Timestamp = "2026-02-28T23:30:05.9Z".parse().unwrap();
        assert_eq!(tell(now, None), "Saturday 2026-02-28 23:30:05 UTC");
        assert_eq!(tell(now, Some(TimeZone::UTC)), "Saturday 2026-02-28 23:30:05 UTC");
        let zone = TimeZone::fixed(jiff::tz::offset(5));
        assert_eq!(
            tell(now, Some(zone)),
            "Saturday 2026-02-28 23:30:05 UTC\nSunday 2026-03-01 04:30:05 local (UTC+05:00)"
        );
    }
}
