//! Times as people read them: their own time zone's.

use jiff::tz::TimeZone;

use crate::proto::Timestamp;

/// A time to the minute, in the time zone of this machine (or of `TZ`).
#[must_use]
pub fn minute(time: Timestamp) -> String {
    // what tests compare must not depend on where they run
    let zone = if cfg!(test) { TimeZone::UTC } else { TimeZone::system() };
    let millis = jiff::Timestamp::from_millisecond(time.as_millis()).unwrap_or_default();
    millis.to_zoned_datetime(zone).strftime("%Y-%m-%d %H:%M").to_string()
}
