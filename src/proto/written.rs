//! The JSON that we write, read fast.
//!
//! Opening a session reads every record that was ever written in it, and all of them have the one form in which records
//! are written: no space between members, strings, whole numbers, `true` and `false`. That form is read here. Whatever
//! else there is, good or bad, is nothing here, and `serde_json` has the word: it alone says what a record is and what is
//! wrong with one. What is read here is what it reads, to the same value.

use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::value::{BorrowedBytesDeserializer, BorrowedStrDeserializer, MapAccessDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Reads an object's members, which stand there without its braces.
pub(super) fn members<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Option<T> {
    let mut reader = Reader { rest: text, unescaped: SPARE.take() };
    let value = T::deserialize(MapAccessDeserializer::new(Items::of(&mut reader)));
    if reader.unescaped.len() <= MOST_SPARE {
        SPARE.set(reader.unescaped);
    }
    value.ok().filter(|_| reader.rest.is_empty())
}

/// The longest buffer that is kept for the next record, in bytes.
const MOST_SPARE: usize = 64 * 1024;

thread_local! {
    /// Room for a text without its escapes: to make and fill it anew for each record was a seventh of reading them.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// It is not what we write, or not what is wanted.
#[derive(Debug)]
struct Other;

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not as it is written")
    }
}

impl std::error::Error for Other {}

impl de::Error for Other {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

struct Reader<'de> {
    rest: &'de [u8],
    /// A string's text, when it stands there with escapes.
    unescaped: Vec<u8>,
}

impl<'de> Reader<'de> {
    fn eat(&mut self, what: &[u8]) -> Result<(), Other> {
        self.rest = self.rest.strip_prefix(what).ok_or(Other)?;
        Ok(())
    }

    fn take(&mut self, count: usize) -> Result<&'de [u8], Other> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Other)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, Other> {
        let end = self.rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(self.rest.len());
        match self.take(end)? {
            [] | [b'0', _, ..] => Err(Other),
            digits => digits.iter().try_fold(0u64, |number, digit| {
                let digit = u64::from(digit.wrapping_sub(b'0'));
                number.checked_mul(10).and_then(|tens| tens.checked_add(digit)).ok_or(Other)
            }),
        }
    }

    /// A string without escapes.
    fn plain(&mut self) -> Result<&'de [u8], Other> {
        self.eat(b"\"")?;
        let text = self.take(plain(self.rest))?;
        self.eat(b"\"")?;
        Ok(text)
    }

    fn string<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Other> {
        self.eat(b"\"")?;
        let plain = plain(self.rest);
        match self.rest.split_at_checked(plain) {
            Some((text, [b'"', rest @ ..])) => {
                self.rest = rest;
                visitor.visit_borrowed_str(std::str::from_utf8(text).map_err(|_| Other)?)
            }
            _ => {
                let length = self.unescape()?;
                let text = self.unescaped.get(..length).ok_or(Other)?;
                visitor.visit_str(std::str::from_utf8(text).map_err(|_| Other)?)
            }
        }
    }

    /// Reads the rest of a string, and gives the length of its text in `unescaped`.
    fn unescape(&mut self) -> Result<usize, Other> {
        // enough for every string of the line
        let most = self.rest.len().saturating_add(WORD);
        if self.unescaped.len() < most {
            self.unescaped.resize(most, 0);
        }
        let mut length = 0usize;
        loop {
            let word = first_word(self.rest);
            let plain = plain_in(word);
            let room = self.unescaped.get_mut(length..).and_then(<[u8]>::first_chunk_mut);
            // what is too much of it is written over
            *room.ok_or(Other)? = word;
            length += plain;
            self.take(plain)?;
            if plain == WORD {
                continue;
            }
            let (byte, rest) = match self.rest {
                [b'"', rest @ ..] => {
                    self.rest = rest;
                    return Ok(length);
                }
                [b'\\', b'u', b'0', b'0', high @ (b'0' | b'1'), low, rest @ ..] => {
                    let low = char::from(*low).to_digit(16).and_then(|low| u8::try_from(low).ok());
                    (low.map(|low| high.wrapping_sub(b'0') << 4 | low), rest)
                }
                [b'\\', letter, rest @ ..] => (unescaped(*letter), rest),
                _ => return Err(Other),
            };
            *self.unescaped.get_mut(length).ok_or(Other)? = byte.ok_or(Other)?;
            self.rest = rest;
            length += 1;
        }
    }
}

/// What an escape of one letter stands for.
fn unescaped(letter: u8) -> Option<u8> {
    match letter {
        b'"' | b'\\' => Some(letter),
        b'b' => Some(0x08),
        b'f' => Some(0x0c),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        _ => None,
    }
}

/// So many bytes are looked at at once.
const WORD: usize = 8;

// Built for size, the next two would be calls for each word of every text.

/// The first bytes of a text, and zeros behind it where there are too few.
#[inline(always)]
fn first_word(text: &[u8]) -> [u8; WORD] {
    text.first_chunk().copied().unwrap_or_else(|| {
        let mut word = [0; WORD];
        word.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
        word
    })
}

/// How many bytes stand before the first one that ends a string, or cannot be in one as it is: a quote, a backslash, a
/// control.
#[inline(always)]
fn plain_in(word: [u8; WORD]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    let word = u64::from_le_bytes(word);
    // the high bit of each byte that is less than `than`; behind the first such byte of others too
    let less = |word: u64, than: u64| word.wrapping_sub(ONES * than) & !word;
    let quote = less(word ^ (ONES * b'"' as u64), 1);
    let backslash = less(word ^ (ONES * b'\\' as u64), 1);
    let special = (quote | backslash | less(word, 0x20)) & (ONES * 0x80);
    (special.trailing_zeros() / 8) as usize
}

/// The same of a text of any length.
fn plain(text: &[u8]) -> usize {
    let (words, rest) = text.as_chunks::<WORD>();
    let mut before = 0usize;
    for word in words {
        let plain = plain_in(*word);
        before += plain;
        if plain < WORD {
            return before;
        }
    }
    before + plain_in(first_word(rest))
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Other;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Other> {
        match self.rest.first() {
            Some(b'"') => self.string(visitor),
            Some(b'0'..=b'9') => visitor.visit_u64(self.number()?),
            Some(b'{') => {
                self.eat(b"{")?;
                let value = visitor.visit_map(Items::of(self))?;
                self.eat(b"}")?;
                Ok(value)
            }
            Some(b'[') => {
                self.eat(b"[")?;
                let value = visitor.visit_seq(Items::of(self))?;
                self.eat(b"]")?;
                Ok(value)
            }
            Some(b't') => {
                self.eat(b"true")?;
                visitor.visit_bool(true)
            }
            Some(b'f') => {
                self.eat(b"false")?;
                visitor.visit_bool(false)
            }
            _ => Err(Other),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Other> {
        // one that is absent is not written
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Other> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Other> {
        let name = std::str::from_utf8(self.plain()?).map_err(|_| Other)?;
        visitor.visit_enum(BorrowedStrDeserializer::new(name))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// The members of an object, or the items of an array.
struct Items<'r, 'de> {
    reader: &'r mut Reader<'de>,
    first: bool,
}

impl<'r, 'de> Items<'r, 'de> {
    fn of(reader: &'r mut Reader<'de>) -> Self {
        Self { reader, first: true }
    }

    /// Goes to the next one, if there is one.
    fn next(&mut self) -> Result<bool, Other> {
        if matches!(self.reader.rest.first(), None | Some(b'}' | b']')) {
            return Ok(false);
        }
        if !std::mem::take(&mut self.first) {
            self.reader.eat(b",")?;
        }
        Ok(true)
    }
}

impl<'de> MapAccess<'de> for Items<'_, 'de> {
    type Error = Other;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Other> {
        if !self.next()? {
            return Ok(None);
        }
        let key = self.reader.plain()?;
        self.reader.eat(b":")?;
        seed.deserialize(BorrowedBytesDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Other> {
        seed.deserialize(&mut *self.reader)
    }
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = Other;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Other> {
        if !self.next()? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Carried, CarriedEnd, Exchange, Timestamp, TokenIds, TurnId};

    #[test]
    fn what_is_written_is_read() {
        let exchanges =
            ["", "plain, and longer than a word of the processor", "\"\\/\u{8}\u{c}\n\r\t\0\u{1f}\u{7f}é🦊"]
                .map(|text| Exchange {
                    turn: TurnId(u64::MAX),
                    user: text.to_owned(),
                    assistant: text.repeat(3),
                });
        let carried = Carried {
            time: Timestamp::from_millis(0),
            turn: None,
            summary: None,
            exchanges: exchanges.to_vec(),
            ends: CarriedEnd::Said,
            prompt_ids: TokenIds(vec![1, 300]),
        };
        let json = serde_json::to_string(&carried).unwrap();
        let members = json.trim_start_matches('{').trim_end_matches('}');
        assert_eq!(super::members::<Carried>(members.as_bytes()), Some(carried));
    }

    #[test]
    fn what_is_not_written_is_left_to_others() {
        let read = |fields: &str| super::members::<Exchange>(fields.as_bytes());
        assert!(read(r#""turn":1,"user":"a""#).is_some());
        for fields in [
            r#""turn":1,"user":"a","#,
            r#","turn":1,"user":"a""#,
            r#""turn":1,"user":"a"}"#,
            r#""turn":1 ,"user":"a""#,
            r#""turn": 1,"user":"a""#,
            r#""turn":01,"user":"a""#,
            r#""turn":1.0,"user":"a""#,
            r#""turn":-0,"user":"a""#,
            r#""turn":18446744073709551616,"user":"a""#,
            r#""turn":1,"user":"\u0061""#,
            r#""turn":1,"user":"\/""#,
            r#""turn":1,"user":"\x""#,
            r#""turn":1,"user":"\""#,
            r#""turn":1,"user":"a"#,
            r#""turn":1,"user":"a","user":"a""#,
            r#""turn":1,"user":"a","more":1"#,
            r#""turn":1,"user":null"#,
            r#""turn":1"#,
            "",
        ] {
            assert!(read(fields).is_none(), "{fields}");
        }
    }

    #[test]
    fn every_byte_is_plain_or_not() {
        for byte in 0..=u8::MAX {
            for at in 0..WORD {
                let mut word = [b'x'; WORD];
                word[at] = byte;
                let special = matches!(byte, 0..0x20 | b'"' | b'\\');
                assert_eq!(plain_in(word), if special { at } else { WORD }, "{byte} at {at}");
                // whatever stands behind it
                word[at + 1..].fill(0xff);
                assert_eq!(plain_in(word), if special { at } else { WORD }, "{byte} at {at}");
            }
        }
    }
}
