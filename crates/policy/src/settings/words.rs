//! Names and other words that people write and others are shown: of one line, of a length that can be
//! read and kept, and not more of them than is of use (CONF-18).

use std::str::FromStr;

use greenroom_types::id::TemplateName;

/// Longest word that has no form of its own, as a region or a shape, in letters.
pub const WORD_MAX: usize = 128;
/// Longest image reference, in letters.
pub const IMAGE_MAX: usize = 512;
/// Images of one template.
pub const IMAGES_MAX: usize = 256;
/// Templates that one spare is for.
pub const TEMPLATES_MAX: usize = 256;

/// What is wrong with a text that is to be one line of at most so many letters.
pub fn fault_of_line(text: &str, most: usize) -> Option<String> {
    let count = text.chars().count();
    if count > most {
        return Some(format!("has {count} letters; at most {most} are taken"));
    }
    let letter = text.chars().find(|letter| letter.is_control())?;
    Some(format!(
        "must be one line of plain text, and holds {letter:?}"
    ))
}

/// What is wrong with the templates that a spare is to be for.
pub fn fault_of_templates<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    let count = names.len();
    if count > TEMPLATES_MAX {
        return Some(format!(
            "{count} templates; a spare is for at most {TEMPLATES_MAX}"
        ));
    }
    let mut names = names;
    names.find_map(|name| Some(TemplateName::from_str(name).err()?.to_string()))
}

/// What is wrong with the images of a template.
pub fn fault_of_images(template: &str, refs: &[String]) -> Option<String> {
    if let Err(error) = TemplateName::from_str(template) {
        return Some(error.to_string());
    }
    let count = refs.len();
    if count > IMAGES_MAX {
        return Some(format!(
            "{count} images; a template has at most {IMAGES_MAX}"
        ));
    }
    refs.iter().find_map(|image| {
        if image.is_empty() {
            return Some("an image reference is empty".to_owned());
        }
        if let Some(fault) = fault_of_line(image, IMAGE_MAX) {
            return Some(format!("an image {fault}"));
        }
        let is_split = image.contains(char::is_whitespace);
        is_split.then(|| format!("image {image:?} has a space in it, which no reference has"))
    })
}

/// What is wrong with the address of the Manager.
pub(super) fn fault_of_address(url: &str) -> Option<String> {
    let (scheme, rest) = match url.split_once("://") {
        None => ("", url),
        Some((scheme, rest)) => (scheme, rest.strip_suffix('/').unwrap_or(rest)),
    };
    let (host, port) = match rest.rsplit_once(':') {
        // A colon within brackets is part of an address of the sixth version.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    let is_letter = |letter: char| !letter.is_whitespace() && !letter.is_control();
    let is_host = !host.is_empty() && host.chars().all(|it| is_letter(it) && !"/@?#".contains(it));
    let is_port = match port {
        Some(port) => port.parse::<u16>().is_ok_and(|port| port > 0),
        None => !scheme.is_empty(),
    };
    let is_scheme = matches!(scheme, "" | "http" | "https");
    let is_short = url.chars().count() <= IMAGE_MAX;
    if is_host && is_port && is_scheme && is_short {
        return None;
    }
    let shown: String = url.chars().take(WORD_MAX).collect();
    Some(format!(
        "expected the Manager's address as host:port, with a port of 1 to 65535, found {shown:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: CONF-02
    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in [
            "h:1",
            "127.0.0.1:6789",
            "[::1]:6789",
            "https://m.example",
            "http://m.example:65535/",
            "https://[::1]:6789",
        ] {
            assert_eq!(fault_of_address(good), None, "{good}");
        }
        for bad in [
            "a b:99999",
            "h",
            "h:",
            ":1",
            "h:0",
            "h:65536",
            "h:x",
            "ftp://h:1",
            "http://",
            "h\n:1",
            "h/x:1",
            "[::1]",
        ] {
            let fault = fault_of_address(bad).expect(bad);
            assert!(
                fault.contains("host:port") && !fault.contains('\n'),
                "{fault}"
            );
        }
    }
}
