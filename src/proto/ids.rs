//! Ids, counters, digests and times as they stand on disk and on the wire.

use std::fmt;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

/// Why a text is not an id, a digest or a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdError {
    /// Not a session id: what was given, and the first thing that is wrong with it.
    Session(String, &'static str),
    /// Not a SHA-256 digest (64 lower-case hexadecimal digits).
    Digest(String),
    /// Not a UTC time of the form `2026-01-31T23:59:59.999Z`.
    Timestamp(String),
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(text, why) => write!(
                f,
                "{text:?} is not a session id: {why}; allowed are 1 to 64 of a-z 0-9 . _ -, a letter or digit first"
            ),
            Self::Digest(text) => write!(f, "{text:?} is not a SHA-256 digest (64 lower-case hex digits)"),
            Self::Timestamp(text) => {
                write!(f, "{text:?} is not a UTC time of the form 2026-01-31T23:59:59.999Z")
            }
        }
    }
}

impl std::error::Error for IdError {}

/// Reads a string as what it stands for, without a copy of it.
pub(super) fn from_text<'de, D: Deserializer<'de>, T, E: fmt::Display>(
    d: D,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    struct Text<F>(F);

    impl<T, E: fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Text<F> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<S: serde::de::Error>(self, text: &str) -> Result<T, S> {
            (self.0)(text).map_err(S::custom)
        }
    }

    d.deserialize_str(Text(read))
}

/// Names a session and its directory. Safe as a file name by construction: 1 to 64 of
/// `a-z 0-9 . _ -`, the first a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(String);

impl SessionId {
    /// The longest id, in bytes.
    pub const MAX_BYTES: usize = 64;
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

    /// An id from 12 random bytes, one character of Crockford's base 32 for each (60 bits in all).
    #[must_use]
    pub fn from_random(bytes: [u8; 12]) -> Self {
        let text = bytes
            .iter()
            .filter_map(|byte| Self::ALPHABET.get(usize::from(byte % 32)))
            .map(|c| char::from(*c))
            .collect();
        Self(text)
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let bad = |why| Err(IdError::Session(text.chars().take(80).collect(), why));
        let Some(first) = text.bytes().next() else {
            return bad("it is empty");
        };
        if text.len() > Self::MAX_BYTES {
            return bad("it is longer than 64 characters");
        }
        if !(first.is_ascii_lowercase() || first.is_ascii_digit()) {
            return bad("it does not begin with a letter or a digit");
        }
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
        if !text.bytes().all(allowed) {
            return bad("it has a character that is not allowed");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        from_text(d, str::parse)
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The next one; stays at the greatest number there is.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(
    /// A stretch of a session under one baseline; the first is 0.
    Epoch(u32)
);
counter!(
    /// A tool call: 1, 2, 3, … within a session, across epochs.
    CallId(u64)
);
counter!(
    /// A turn: 1, 2, 3, … within a session, across epochs.
    TurnId(u64)
);

/// A SHA-256 digest, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// A digest that was computed piece by piece.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 64 hexadecimal digits as bytes.
    #[must_use]
    pub fn to_hex(self) -> [u8; 64] {
        let digit =
            |n: u8| if n < 10 { b'0'.saturating_add(n) } else { b'a'.saturating_add(n.saturating_sub(10)) };
        let mut hex = [0; 64];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            if let [high, low] = pair {
                *high = digit(byte >> 4);
                *low = digit(byte & 15);
            }
        }
        hex
    }

    /// Reads 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn from_hex(hex: &[u8]) -> Option<Self> {
        if hex.len() != 64 {
            return None;
        }
        let (mut bytes, mut all) = ([0; 32], 0);
        for (byte, pair) in bytes.iter_mut().zip(hex.as_chunks::<2>().0) {
            let [high, low] = pair.map(hex_digit);
            *byte = (high << 4) | low;
            all |= high | low;
        }
        if all >= NO_HEX {
            return None;
        }
        Some(Self(bytes))
    }
}

/// What [`hex_digit`] gives for what is none.
const NO_HEX: u8 = 0x80;

/// The value of a lower-case hexadecimal digit. Digits come as they like, so there is no branch on what it is.
fn hex_digit(digit: u8) -> u8 {
    let (number, letter) = (digit.wrapping_sub(b'0'), digit.wrapping_sub(b'a'));
    if number < 10 {
        number
    } else if letter < 6 {
        letter.wrapping_add(10)
    } else {
        NO_HEX
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_hex().iter().try_for_each(|c| write!(f, "{}", char::from(*c)))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::from_hex(text.as_bytes()).ok_or_else(|| IdError::Digest(text.chars().take(80).collect()))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        from_text(d, str::parse)
    }
}

/// A moment, UTC, to the millisecond; RFC 3339 on disk. Only for people: the order of records is the
/// order of their lines, so a clock that jumps breaks nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(jiff::Timestamp);

impl Timestamp {
    /// The wall clock's time, cut to milliseconds.
    #[must_use]
    pub fn now() -> Self {
        let now = jiff::Timestamp::now().as_millisecond();
        Self(jiff::Timestamp::from_millisecond(now.clamp(Self::FIRST, Self::LAST)).unwrap_or_default())
    }

    /// Milliseconds since 1970, UTC.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.0.as_millisecond()
    }

    /// From milliseconds since 1970, UTC, kept between the years 0001 and 9999.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self(jiff::Timestamp::from_millisecond(millis.clamp(Self::FIRST, Self::LAST)).unwrap_or_default())
    }

    /// Reads what we write, one in every record, and much faster than any moment that anybody could write. Gives
    /// nothing for another text, and where a number is out of its range.
    fn written(text: &[u8]) -> Option<Self> {
        let [
            y0,
            y1,
            y2,
            y3,
            b'-',
            mo0,
            mo1,
            b'-',
            d0,
            d1,
            b'T',
            h0,
            h1,
            b':',
            mi0,
            mi1,
            b':',
            s0,
            s1,
            b'.',
            f0,
            f1,
            f2,
            b'Z',
        ] = text
        else {
            return None;
        };
        let number = |digits: &[&u8]| {
            digits.iter().try_fold(0i16, |n, digit| {
                digit.is_ascii_digit().then(|| n * 10 + i16::from(digit.wrapping_sub(b'0')))
            })
        };
        let two = |tens: &u8, ones: &u8| i8::try_from(number(&[tens, ones])?).ok();
        let nanos = i32::from(number(&[f0, f1, f2])?) * 1_000_000;
        let date = jiff::civil::Date::new(number(&[y0, y1, y2, y3])?, two(mo0, mo1)?, two(d0, d1)?).ok()?;
        let time = jiff::civil::Time::new(two(h0, h1)?, two(mi0, mi1)?, two(s0, s1)?, nanos).ok()?;
        jiff::tz::Offset::UTC.to_timestamp(date.to_datetime(time)).ok().map(Self)
    }

    // 0001-01-01T00:00:00Z and 9999-12-30T21:59:59.999Z: four-digit years, within jiff's range
    const FIRST: i64 = -62_135_596_800_000;
    const LAST: i64 = 253_402_207_199_999;
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

impl FromStr for Timestamp {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if let Some(time) = Self::written(text.as_bytes()) {
            return Ok(time);
        }
        let bad = || IdError::Timestamp(text.chars().take(80).collect());
        let time = Self(text.parse().map_err(|_| bad())?);
        // only the canonical form, so that a record and its line stay one to one
        if time.to_string() == text { Ok(time) } else { Err(bad()) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        from_text(d, str::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow way alone.
    fn slowly(text: &str) -> Option<Timestamp> {
        let time = Timestamp(text.parse().ok()?);
        (time.to_string() == text).then_some(time)
    }

    #[test]
    fn the_fast_reading_of_a_moment_is_the_slow_one() {
        let step = 86_399_997 * 37;
        let mut millis = Timestamp::FIRST;
        while millis <= Timestamp::LAST {
            let time = Timestamp::from_millis(millis);
            assert_eq!(Timestamp::written(time.to_string().as_bytes()), Some(time));
            millis += step;
        }
        // each character by each that could stand there
        for text in [
            "2024-02-29T23:59:59.999Z",
            "1900-02-28T00:00:00.000Z",
            "2000-02-28T10:00:00.007Z",
            "9999-12-30T21:59:59.999Z",
        ] {
            for at in 0..text.len() {
                for other in "0123456789-:.TZ +".chars() {
                    let mut text = text.to_owned();
                    text.replace_range(at..=at, &other.to_string());
                    assert_eq!(text.parse::<Timestamp>().ok(), slowly(&text), "{text}");
                }
            }
        }
    }
}
