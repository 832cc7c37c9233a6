//! A line of a log on disk, `<time> <stream> <text>`, and how output becomes lines.
//!
//! Lines carry their time and stream so that both can be told later (LOG-01). A text is bounded: what
//! is longer becomes several lines. Files of another form are read too; then time and stream are not
//! known.

use greenroom_types::Wall;
use jiff::Timestamp;

/// Longest text of one line, in bytes.
pub(crate) const TEXT_MAX: usize = 16 << 10;
/// Longest line on disk: time and stream come before the text.
pub(crate) const LINE_MAX: usize = TEXT_MAX + 64;

/// Which of a service's outputs a line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Output {
    Stdout,
    Stderr,
}

/// A line as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) at: Option<Timestamp>,
    pub(crate) output: Option<Output>,
    /// Without its end of line; bytes that are no UTF-8 are replaced.
    pub(crate) text: String,
}

/// Makes lines of what one output says, however it is cut into pieces.
#[derive(Debug)]
pub(crate) struct Framer {
    output: Output,
    part: Vec<u8>,
    /// When the first byte of `part` came.
    at: Timestamp,
    /// The last byte was a carriage return, which has ended its line.
    returned: bool,
}

// === impl Output ===

impl Output {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

// === impl LogLine ===

impl LogLine {
    pub(crate) fn parse(line: &[u8]) -> Self {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let text = String::from_utf8_lossy(line);
        let mut words = text.splitn(3, ' ');
        let at = words.next().and_then(|word| word.parse().ok());
        let output = match words.next() {
            Some("stdout") => Some(Output::Stdout),
            Some("stderr") => Some(Output::Stderr),
            _ => None,
        };
        match (at, output, words.next()) {
            (Some(at), Some(output), Some(text)) => Self {
                at: Some(at),
                output: Some(output),
                text: text.to_owned(),
            },
            _ => Self {
                at: None,
                output: None,
                text: text.into_owned(),
            },
        }
    }

    /// Its time on the wall clock.
    pub(crate) fn wall(&self) -> Option<Wall> {
        self.at.map(|at| Wall(at.as_millisecond()))
    }
}

// === impl Framer ===

impl Framer {
    pub(crate) const fn new(output: Output) -> Self {
        Self {
            output,
            part: Vec::new(),
            at: Timestamp::UNIX_EPOCH,
            returned: false,
        }
    }

    /// Takes what came at `at` and appends every line that is now whole to `lines`.
    ///
    /// A carriage return ends a line as well: programs that show their progress say nothing else for
    /// hours.
    pub(crate) fn push(&mut self, at: Timestamp, bytes: &[u8], lines: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, end) = match piece.split_last() {
                Some((end @ (b'\n' | b'\r'), text)) => (text, Some(*end)),
                _ => (piece, None),
            };
            let after_return = std::mem::replace(&mut self.returned, end == Some(b'\r'));
            self.take(at, text, lines);
            match end {
                // The second half of one end of line, or a return at the beginning of one.
                Some(b'\n') if after_return && text.is_empty() => {}
                Some(b'\r') if self.part.is_empty() => {}
                Some(_) => {
                    if self.part.is_empty() {
                        self.at = at;
                    }
                    self.flush(self.part.len(), lines);
                }
                None => {}
            }
        }
    }

    /// Ends the line that is open.
    pub(crate) fn finish(&mut self, lines: &mut Vec<u8>) {
        if !self.part.is_empty() {
            self.flush(self.part.len(), lines);
        }
    }

    fn take(&mut self, at: Timestamp, mut text: &[u8], lines: &mut Vec<u8>) {
        while !text.is_empty() {
            if self.part.is_empty() {
                self.at = at;
            }
            let (now, rest) = text.split_at(text.len().min(TEXT_MAX + 1 - self.part.len()));
            self.part.extend_from_slice(now);
            text = rest;
            if self.part.len() > TEXT_MAX {
                self.flush(boundary(&self.part, TEXT_MAX), lines);
            }
        }
    }

    fn flush(&mut self, len: usize, lines: &mut Vec<u8>) {
        let rest = self.part.split_off(len);
        let text = std::mem::replace(&mut self.part, rest);
        let head = format!("{} {} ", self.at, self.output.name());
        lines.extend_from_slice(head.as_bytes());
        lines.extend_from_slice(&text);
        lines.push(b'\n');
    }
}

/// The last place up to `max` at which no character is cut in two.
fn boundary(bytes: &[u8], max: usize) -> usize {
    let begins = |at: &usize| bytes[*at] & 0xC0 != 0x80;
    (max - 3..=max).rev().find(begins).unwrap_or(max)
}

/// Now, as exactly as a line needs it.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(pieces: &[&[u8]]) -> Vec<LogLine> {
        let (mut framer, mut lines) = (Framer::new(Output::Stderr), Vec::new());
        for (n, piece) in pieces.iter().enumerate() {
            let at = Timestamp::from_second(n as i64).unwrap();
            framer.push(at, piece, &mut lines);
        }
        framer.finish(&mut lines);
        lines
            .split_inclusive(|byte| *byte == b'\n')
            .map(LogLine::parse)
            .collect()
    }

    fn texts(pieces: &[&[u8]]) -> Vec<String> {
        framed(pieces).into_iter().map(|line| line.text).collect()
    }

    // spec: LOG-01
    #[test]
    fn lines_keep_their_stream_and_the_time_of_their_first_byte() {
        let lines = framed(&[b"one\nt", b"wo\n", b"three"]);
        let told: Vec<_> = lines
            .iter()
            .map(|line| (line.wall().unwrap().0, line.text.as_str()))
            .collect();
        assert_eq!(told, [(0, "one"), (0, "two"), (2_000, "three")]);
        assert!(lines.iter().all(|line| line.output == Some(Output::Stderr)));
    }

    #[test]
    fn returns_end_lines_and_empty_lines_stay() {
        assert_eq!(texts(&[b"a\r\nb\r", b"\nc\rd\n"]), ["a", "b", "c", "d"]);
        assert_eq!(texts(&[b"a\n\nb\n"]), ["a", "", "b"]);
        assert_eq!(texts(&[b"\rframe=1\rframe=2\r"]), ["frame=1", "frame=2"]);
    }

    // spec: LOG-01
    #[test]
    fn a_long_line_becomes_several_and_no_character_is_cut() {
        let long = "\u{20AC}".repeat(TEXT_MAX);
        let texts = texts(&[long.as_bytes(), b"\nshort\n"]);
        assert_eq!(texts.last().unwrap(), "short");
        assert!(texts.iter().all(|text| text.len() <= TEXT_MAX));
        assert_eq!(texts[..texts.len() - 1].concat(), long);
        // Bytes that are no text are cut somewhere and lost nowhere.
        let bytes = vec![0x80; 3 * TEXT_MAX];
        let (mut framer, mut lines) = (Framer::new(Output::Stdout), Vec::new());
        framer.push(Timestamp::UNIX_EPOCH, &bytes, &mut lines);
        framer.finish(&mut lines);
        assert_eq!(
            lines.iter().filter(|byte| **byte == 0x80).count(),
            bytes.len()
        );
    }

    #[test]
    fn a_line_of_another_form_is_a_text() {
        for text in ["plain", "", "2026-01-01T00:00:00Z", "x stdout y"] {
            let line = LogLine::parse(text.as_bytes());
            assert_eq!(
                (line.at, line.output, line.text.as_str()),
                (None, None, text)
            );
        }
    }
}
