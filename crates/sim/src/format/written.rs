//! What others wrote, as it is shown.

/// A text for one line of a terminal, cut where it is too long: a character that would end the line
/// or steer the terminal is shown as it is written in quotes.
pub(super) fn on_one_line(text: &str, most: usize) -> String {
    let mut line = String::with_capacity(text.len().min(most));
    for (at, c) in text.chars().enumerate() {
        if at == most {
            line.push_str("...");
            break;
        }
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}
