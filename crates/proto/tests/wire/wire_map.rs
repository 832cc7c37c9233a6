//! Reads part A of `docs/spec/manager.md`, the wire map: which calls, messages, fields and enums are added.
//!
//! The map is written for people: names without a type are those whose type follows from the name (`job_key` is
//! an ActiveJobKey), `{...}` is a message without a name, `{same}` repeats the one before, and one row may speak
//! of several messages. Whatever the reader does not understand is a panic, never passed over.

use super::descriptors::Surface;

const SPEC: &str = include_str!("../../../../docs/spec/manager.md");

/// A type as the map writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A letter, or the short name of a message or enum, or `map<s,s>`.
    Named(String),
    /// Fields in braces: a message whose name the map leaves open.
    Inline(Vec<Item>),
    /// No type given.
    Open,
}

/// One field as the map writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// None where the order gives the number.
    pub(crate) number: Option<i32>,
    pub(crate) name: String,
    pub(crate) repeated: bool,
    pub(crate) optional: bool,
    pub(crate) oneof: bool,
    pub(crate) kind: Kind,
}

/// An added call. No response fields and no name means Empty.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) rpc: String,
    pub(crate) request: Vec<Item>,
    pub(crate) response: Answer,
}

/// What an added call answers.
#[derive(Debug)]
pub(crate) enum Answer {
    Empty,
    Message(String),
    Fields(Vec<Item>),
}

/// The added calls of A.1.
pub(crate) fn calls() -> Vec<Call> {
    let mut calls = Vec::new();
    for row in section("### A.1").filter_map(cells) {
        let [rpcs, requests, responses] = row.as_slice() else {
            panic!("three columns: {row:?}")
        };
        let rpcs: Vec<&str> = rpcs
            .split(" / ")
            .map(|rpc| rpc.split(' ').next().unwrap_or(rpc))
            .collect();
        let several = |cell: &str| -> Vec<String> {
            if rpcs.len() == 1 {
                vec![cell.to_owned()]
            } else {
                cell.split(" / ").map(str::to_owned).collect()
            }
        };
        let (requests, responses) = (several(requests), several(responses));
        assert_eq!(
            (rpcs.len(), rpcs.len()),
            (requests.len(), responses.len()),
            "{row:?}"
        );
        for ((rpc, request), response) in rpcs.iter().zip(requests).zip(responses) {
            let request = if request == "(none)" {
                Vec::new()
            } else {
                items(&request)
            };
            let response = match response.as_str() {
                "E" => Answer::Empty,
                name if !name.contains(' ') => Answer::Message(name.to_owned()),
                fields => Answer::Fields(items(fields)),
            };
            calls.push(Call {
                rpc: (*rpc).to_owned(),
                request,
                response,
            });
        }
    }
    calls
}

/// Added fields by the short name of the published message: A.2, A.4 and A.5.
pub(crate) fn added_fields() -> Vec<(String, Vec<Item>)> {
    let mut added = Vec::new();
    for row in section("### A.2").filter_map(cells) {
        let [messages, fields] = row.as_slice() else {
            panic!("two columns: {row:?}")
        };
        let all_oneof = messages.contains("(oneof)");
        let messages = messages.replace(" (oneof)", "");
        let short = |name: &str| name.trim().rsplit('.').next().unwrap_or(name).to_owned();
        let groups: Vec<Vec<Item>> = split(fields, ';')
            .into_iter()
            .map(|group| group_items(&group))
            .collect();
        let by_semicolon: Vec<&str> = messages.split(';').collect();
        let by_comma: Vec<&str> = messages.split([',', ';']).collect();
        // As many lists of messages as of fields; or one message each; or all fields to one message.
        let pairs: Vec<(Vec<&str>, Vec<Item>)> = if by_comma.len() == 1 {
            vec![(by_comma, groups.concat())]
        } else if by_comma.len() == groups.len() {
            by_comma
                .into_iter()
                .map(|name| vec![name])
                .zip(groups)
                .collect()
        } else if by_semicolon.len() == groups.len() {
            by_semicolon
                .into_iter()
                .map(|names| names.split(',').collect())
                .zip(groups)
                .collect()
        } else {
            panic!("messages and fields do not pair up: {row:?}");
        };
        for (names, mut items) in pairs {
            items.iter_mut().for_each(|item| item.oneof |= all_oneof);
            added.extend(names.into_iter().map(|name| (short(name), items.clone())));
        }
    }

    let (plain, members) = {
        let text = section("### A.4").collect::<Vec<_>>();
        let heading = SPEC
            .lines()
            .find(|line| line.starts_with("### A.4"))
            .expect("A.4");
        let plain = heading
            .split_once("(plain fields ")
            .expect("plain fields")
            .1;
        (
            plain.split_once(';').expect("then members").0.to_owned(),
            text.join(" "),
        )
    };
    let mut events = items(&plain);
    events.extend(
        items(members.trim_end_matches('.'))
            .into_iter()
            .map(|item| Item {
                oneof: true,
                ..item
            }),
    );
    added.push(("EventStreamEvent".to_owned(), events));

    for bullet in bullets("### A.5")
        .into_iter()
        .filter(|bullet| bullet.starts_with('`'))
    {
        for (name, body) in named_parts(&bullet) {
            let body = body.trim_start_matches(':').trim_start_matches("plain:");
            let mut fields = Vec::new();
            for group in split(body, ';') {
                match group.trim().strip_prefix("oneof:") {
                    Some(members) => fields.extend(items(members).into_iter().map(|item| Item {
                        oneof: true,
                        ..item
                    })),
                    None => fields.extend(items(&group)),
                }
            }
            added.push((name, fields));
        }
    }
    added
}

/// New messages with their fields in order: A.3. Names are short.
pub(crate) fn messages() -> Vec<(String, Vec<Item>)> {
    let mut messages = Vec::new();
    for bullet in bullets("### A.3") {
        messages.extend(
            named_parts(&bullet)
                .into_iter()
                .map(|(name, body)| (name, items(&body))),
        );
    }
    messages
}

/// New enums with their values from 0, without prefix: A.6.
pub(crate) fn enums() -> Vec<(String, Vec<String>)> {
    let text = section("### A.6").collect::<Vec<_>>().join(" ");
    let list = text
        .split_once("(0 is the default):")
        .expect("the list of enums")
        .1;
    let list = list.split_once(". ").map_or(list, |(list, _)| list);
    let list = list.split_once('.').map_or(list, |(list, _)| list);
    list.split(';')
        .map(|one| {
            let (name, values) = one.trim().split_once(' ').expect("name and values");
            (
                name.to_owned(),
                values.split(", ").map(str::to_owned).collect(),
            )
        })
        .collect()
}

/// Number and name of an enum's value.
pub(crate) type Value = (i32, String);

/// Values of RejectionCode from 1 on, and of the reasons added to JobHistoryJobStopping: A.6.
pub(crate) fn numbered_values() -> (Vec<Value>, Vec<Value>) {
    let text = section("### A.6").collect::<Vec<_>>().join(" ");
    let numbered = |list: &str, prefix: &str| {
        list.trim_end_matches('.')
            .split(", ")
            .map(|one| {
                let (number, name) = one.trim().split_once(' ').expect("number and name");
                (number.parse().expect("a number"), format!("{prefix}{name}"))
            })
            .collect()
    };
    let (_, codes) = text
        .split_once("then JOB_REJECTED_ ")
        .expect("rejection codes");
    let (codes, rest) = codes.split_once(". ").expect("the end of the codes");
    let (_, reasons) = rest.split_once("others: ").expect("added reasons");
    (numbered(codes, "JOB_REJECTED_"), numbered(reasons, ""))
}

/// The full name of what the map calls `short`: in manager, common or worker.
pub(crate) fn full_name(surface: &Surface, short: &str) -> String {
    let found: Vec<String> = ["manager", "common", "worker"]
        .map(|package| format!("norsk.api.{package}.{short}"))
        .into_iter()
        .filter(|name| surface.messages.contains_key(name) || surface.enums.contains_key(name))
        .collect();
    found
        .first()
        .unwrap_or_else(|| panic!("no message or enum {short}"))
        .clone()
}

// === reading the text ===

/// The lines under a heading of the wire map, without it.
fn section(heading: &str) -> impl Iterator<Item = &'static str> {
    let mut lines = SPEC
        .lines()
        .skip_while(move |line| !line.starts_with(heading));
    assert!(lines.next().is_some(), "no section {heading}");
    lines
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| !line.is_empty())
}

/// The cells of a row, none for the head of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells: Vec<&str> = row.split(" | ").collect();
    (!matches!(cells[0], "RPC" | "message")).then_some(cells)
}

fn bullets(heading: &str) -> Vec<String> {
    let text = section(heading).collect::<Vec<_>>().join("\n");
    text.split("\n- ")
        .map(|one| one.trim_start_matches("- ").replace('\n', " "))
        .collect()
}

/// "`Name` body `Name` body ..." in pairs; the package in front of a name is left out.
fn named_parts(bullet: &str) -> Vec<(String, String)> {
    let parts: Vec<&str> = bullet.split('`').collect();
    assert!(
        parts[0].is_empty() && parts.len() % 2 == 1,
        "names in backticks and bodies: {bullet}"
    );
    parts[1..]
        .chunks(2)
        .map(|pair| {
            let name = pair[0].rsplit('.').next().unwrap_or(pair[0]);
            (
                name.to_owned(),
                pair[1].trim().trim_end_matches('.').to_owned(),
            )
        })
        .collect()
}

/// Splits at a separator outside brackets.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for character in text.chars() {
        match character {
            '{' | '(' | '<' => depth += 1,
            '}' | ')' | '>' => depth -= 1,
            _ => {}
        }
        if character == separator && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("never empty").push(character);
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// A group of A.2, which may begin with `oneof` or `oneof NAME` and then holds members only from there on.
fn group_items(group: &str) -> Vec<Item> {
    let mut oneof = false;
    split(group, ',')
        .iter()
        .map(|text| {
            let mut text = text.trim();
            if let Some(rest) = text.strip_prefix("oneof ") {
                oneof = true;
                text = rest.trim_start_matches(|character: char| !character.is_ascii_digit());
            }
            Item {
                oneof,
                ..item(text)
            }
        })
        .collect()
}

/// Fields separated by commas.
pub(crate) fn items(text: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for part in split(text, ',') {
        let part = part.trim();
        // `oneof payload by / refused s`: two members in one place.
        if let Some(members) = part
            .strip_prefix("oneof ")
            .filter(|members| members.contains(" / "))
        {
            items.extend(members.split(" / ").map(|member| Item {
                oneof: true,
                ..item(member)
            }));
            continue;
        }
        let mut read = item(part);
        if read.kind == Kind::Inline(vec![plain("same")]) {
            read.kind = items.last().expect("same as something").kind.clone();
        }
        items.push(read);
    }
    items
}

fn plain(name: &str) -> Item {
    Item {
        number: None,
        name: name.to_owned(),
        repeated: false,
        optional: false,
        oneof: false,
        kind: Kind::Open,
    }
}

/// `[NUMBER] [*]name[ [*|?]type][{fields}]`, with remarks in parentheses left out.
fn item(text: &str) -> Item {
    let text = match text.split_once(" (") {
        Some((text, _)) => text,
        None => text,
    };
    let (head, inline) = match text.split_once('{') {
        Some((head, rest)) => (head, Some(rest.strip_suffix('}').expect("a closing brace"))),
        None => (text, None),
    };
    let mut words = head.split_whitespace().peekable();
    let number = words
        .next_if(|word| word.parse::<i32>().is_ok())
        .map(|word| word.parse().expect("digits"));
    let name = words.next().unwrap_or_else(|| panic!("a name in {text:?}"));
    let kind = words.next();
    assert!(words.next().is_none(), "one name and one type: {text:?}");

    let marks = kind.unwrap_or(name);
    let mut read = Item {
        number,
        repeated: marks.starts_with('*'),
        optional: marks.starts_with('?'),
        ..plain(name.trim_start_matches('*'))
    };
    read.kind = match (kind.map(|kind| kind.trim_start_matches(['*', '?'])), inline) {
        (Some(""), Some(fields)) | (None, Some(fields)) => Kind::Inline(match fields {
            // A message whose only field has the message's own name.
            map if map.starts_with("map<") => vec![Item {
                kind: Kind::Named(map.to_owned()),
                ..plain(&read.name)
            }],
            fields => items(fields),
        }),
        (Some(kind), None) => Kind::Named(kind.to_owned()),
        (None, None) => Kind::Open,
        (Some(_), Some(_)) => panic!("type and braces: {text:?}"),
    };
    read
}
