//! Strict JSON with the place of everything, for files of which every fault is to be told with line,
//! column and key.
//!
//! What YAML would let pass (a comma behind the last element, comments, single quotes) is a fault
//! here. A fault of form ends the reading, since nothing behind it can be trusted; a key that stands
//! twice does not.

use std::collections::BTreeSet;
use std::fmt;

/// Deeper values are refused.
const DEPTH_MAX: usize = 64;

/// Line and column, both from 1. Columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line.
    pub line: u64,
    /// Column.
    pub column: u64,
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonFault {
    /// Line and column.
    pub place: Place,
    /// Key, as `aws.regions.eu-west-1`; empty for the whole text.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Where it begins.
    pub place: Place,
    /// What it is.
    pub value: PlacedValue,
}

/// What stands at a place.
#[derive(Clone, Debug, PartialEq)]
pub enum PlacedValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it is written.
    Number(String),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Placed>),
    /// Keys with their places, in the order of the text.
    Map(Vec<(Place, String, Placed)>),
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    place: Place,
    path: Vec<String>,
    faults: Vec<JsonFault>,
}

/// Reads a text.
///
/// # Errors
/// Every fault that was found.
pub fn read_json(text: &str) -> Result<Placed, Vec<JsonFault>> {
    let mut reader = Reader {
        text,
        at: 0,
        place: Place { line: 1, column: 1 },
        path: Vec::new(),
        faults: Vec::new(),
    };
    let read = reader.whole();
    match read {
        Ok(value) if reader.faults.is_empty() => Ok(value),
        Ok(_) => Err(reader.faults),
        Err(fault) => {
            reader.faults.push(fault);
            Err(reader.faults)
        }
    }
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column } = self.place;
        write!(f, "{line}:{column}: ")?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

// === impl Placed ===

impl Placed {
    /// What it is, short and without its inside.
    pub fn found(&self) -> String {
        match &self.value {
            PlacedValue::Null => "null".to_owned(),
            PlacedValue::Bool(flag) => flag.to_string(),
            PlacedValue::Number(number) => short(number),
            PlacedValue::Text(text) => format!("text {:?}", short(text)),
            PlacedValue::List(_) => "a list".to_owned(),
            PlacedValue::Map(_) => "an object".to_owned(),
        }
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn whole(&mut self) -> Result<Placed, JsonFault> {
        self.skip_space();
        let value = self.value(0)?;
        self.skip_space();
        match self.peek() {
            None => Ok(value),
            Some(other) => {
                Err(self.fault(format!("the text goes on with {other:?} behind its end")))
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Placed, JsonFault> {
        if depth > DEPTH_MAX {
            return Err(self.fault("this is nested deeper than what is read"));
        }
        let place = self.place;
        let value = match self.peek() {
            Some('{') => self.map(depth)?,
            Some('[') => self.list(depth)?,
            Some('"') => PlacedValue::Text(self.string()?),
            Some('-' | '0'..='9') => self.number()?,
            Some('a'..='z') => self.word()?,
            Some(other) => {
                return Err(self.fault(format!("expected a value, found {other:?}")));
            }
            None => return Err(self.fault("the text ends where a value is expected")),
        };
        Ok(Placed { place, value })
    }

    fn map(&mut self, depth: usize) -> Result<PlacedValue, JsonFault> {
        self.step();
        let mut entries: Vec<(Place, String, Placed)> = Vec::new();
        let mut seen = BTreeSet::new();
        self.skip_space();
        if self.take('}') {
            return Ok(PlacedValue::Map(entries));
        }
        loop {
            self.skip_space();
            let place = self.place;
            let key = match self.peek() {
                Some('"') => self.string()?,
                Some('}') => {
                    return Err(self.fault("a comma stands behind the last key: take it away"));
                }
                Some(other) => {
                    return Err(
                        self.fault(format!("expected a key in double quotes, found {other:?}"))
                    );
                }
                None => return Err(self.fault("the text ends within an object")),
            };
            self.path.push(key.clone());
            self.skip_space();
            if !self.take(':') {
                return Err(self.expected("a colon"));
            }
            self.skip_space();
            let value = self.value(depth + 1)?;
            if !seen.insert(key.clone()) {
                let fault = JsonFault {
                    place,
                    path: self.path.join("."),
                    message: "this key stands twice".to_owned(),
                };
                self.faults.push(fault);
            }
            entries.push((place, key, value));
            self.skip_space();
            if self.take(',') {
                self.path.pop();
                continue;
            }
            if self.take('}') {
                self.path.pop();
                return Ok(PlacedValue::Map(entries));
            }
            return Err(self.expected("a comma or }"));
        }
    }

    fn list(&mut self, depth: usize) -> Result<PlacedValue, JsonFault> {
        self.step();
        let mut items = Vec::new();
        self.skip_space();
        if self.take(']') {
            return Ok(PlacedValue::List(items));
        }
        loop {
            self.skip_space();
            if self.peek() == Some(']') {
                return Err(self.fault("a comma stands behind the last element: take it away"));
            }
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.take(',') {
                continue;
            }
            if self.take(']') {
                return Ok(PlacedValue::List(items));
            }
            return Err(self.expected("a comma or ]"));
        }
    }

    fn string(&mut self) -> Result<String, JsonFault> {
        let begun = self.at;
        let place = self.place;
        self.step();
        loop {
            match self.peek() {
                Some('"') => break,
                Some('\\') => {
                    self.step();
                    self.step();
                }
                Some(other) if (other as u32) < 0x20 => {
                    return Err(self.fault("a text must end in its line; write \\n for a new line"));
                }
                Some(_) => self.step(),
                None => return Err(self.fault("the text ends within quotes")),
            }
        }
        self.step();
        serde_json::from_str(&self.text[begun..self.at]).map_err(|_| JsonFault {
            place,
            path: self.path.join("."),
            message: "an escape in this text is none".to_owned(),
        })
    }

    fn number(&mut self) -> Result<PlacedValue, JsonFault> {
        let (begun, place) = (self.at, self.place);
        while self
            .peek()
            .is_some_and(|c| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E'))
        {
            self.step();
        }
        let text = &self.text[begun..self.at];
        match serde_json::from_str::<serde_json::Number>(text) {
            Ok(_) => Ok(PlacedValue::Number(text.to_owned())),
            Err(_) => Err(JsonFault {
                place,
                path: self.path.join("."),
                message: format!("{} is no number", short(text)),
            }),
        }
    }

    fn word(&mut self) -> Result<PlacedValue, JsonFault> {
        for (word, value) in [
            ("true", PlacedValue::Bool(true)),
            ("false", PlacedValue::Bool(false)),
            ("null", PlacedValue::Null),
        ] {
            if self.text[self.at..].starts_with(word) {
                (0..word.len()).for_each(|_| self.step());
                return Ok(value);
            }
        }
        Err(self.fault("expected a value: texts stand in double quotes"))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn step(&mut self) {
        let Some(c) = self.peek() else { return };
        self.at += c.len_utf8();
        if c == '\n' {
            self.place = Place {
                line: self.place.line + 1,
                column: 1,
            };
        } else {
            self.place.column += 1;
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        let is_there = self.peek() == Some(wanted);
        if is_there {
            self.step();
        }
        is_there
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.step();
        }
    }

    fn expected(&self, what: &str) -> JsonFault {
        match self.peek() {
            Some(other) => self.fault(format!("expected {what}, found {other:?}")),
            None => self.fault(format!("the text ends where {what} is expected")),
        }
    }

    fn fault(&self, message: impl Into<String>) -> JsonFault {
        JsonFault {
            place: self.place,
            path: self.path.join("."),
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let faults = read_json(text).unwrap_err();
        faults.iter().map(ToString::to_string).collect()
    }

    // spec: OVR-03
    #[test]
    fn what_is_no_json_is_told_by_line_column_and_key() {
        let text = "{\n  \"aws\": {\n    \"zones\": [\"a\",],\n  }\n}";
        let told = "3:19: aws.zones: a comma stands behind the last element: take it away";
        assert_eq!(faults(text), [told]);
        let text = "{\n  \"aws\": {\"a\": 1,},\n}";
        let told = "2:18: aws: a comma stands behind the last key: take it away";
        assert_eq!(faults(text), [told]);
        for (text, told) in [
            ("", "1:1: the text ends where a value is expected"),
            (
                "{'a': 1}",
                "1:2: expected a key in double quotes, found '\\''",
            ),
            ("{\"a\" 1}", "1:6: a: expected a colon, found '1'"),
            ("{\"a\": 1 2}", "1:9: a: expected a comma or }, found '2'"),
            ("[1 2]", "1:4: expected a comma or ], found '2'"),
            ("{} x", "1:4: the text goes on with 'x' behind its end"),
            (
                "{\"a\": yes}",
                "1:7: a: expected a value: texts stand in double quotes",
            ),
            ("{\"a\": 01}", "1:7: a: 01 is no number"),
            (
                "{\"a\": \"x\\q\"}",
                "1:7: a: an escape in this text is none",
            ),
            (
                "{\"a\": \"x\n\"}",
                "1:9: a: a text must end in its line; write \\n for a new line",
            ),
            ("{\"a\": \"x", "1:9: a: the text ends within quotes"),
            ("{\"a\": 1, \"a\": 2}", "1:10: a: this key stands twice"),
        ] {
            assert_eq!(faults(text), [told], "{text}");
        }
        let deep = "[".repeat(80);
        assert!(faults(&deep)[0].contains("nested deeper"));
    }

    #[test]
    fn what_is_json_comes_back_with_its_places() {
        let Placed { value, .. } =
            read_json("{\"é\": [1, -2.5e3, true, null, \"x\\ny\"]}").unwrap();
        let PlacedValue::Map(entries) = value else {
            panic!("{value:?}");
        };
        let (place, key, list) = &entries[0];
        assert_eq!((place.column, key.as_str(), list.place.column), (2, "é", 7));
        let PlacedValue::List(items) = &list.value else {
            panic!("{list:?}");
        };
        assert_eq!(items[1].value, PlacedValue::Number("-2.5e3".to_owned()));
        assert_eq!(items[4].value, PlacedValue::Text("x\ny".to_owned()));
        assert_eq!(items[4].place.column, 31);
    }
}
