//! `{{NAME}}` in the texts of a launch (BDL-05).
//!
//! `{{{{` stands for `{{` itself. Everything else that begins with `{{` names a parameter, and an
//! unknown one is an error, so that a misspelt name never reaches a job.

use std::collections::BTreeMap;

use greenroom_types::job::{Container, Job, ServiceParameters};

/// A text that names a parameter which is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// Where in the job.
    pub(crate) path: String,
    /// The name, or what stands where a name should.
    pub(crate) name: String,
}

/// Replaces every placeholder in the texts of a job that may hold them.
pub(crate) fn fill(job: &mut Job, values: &BTreeMap<String, String>) -> Result<(), Unknown> {
    let replace = |text: &mut String, path: &str| -> Result<(), Unknown> {
        *text = replaced(text, values).map_err(|name| Unknown {
            path: path.to_owned(),
            name,
        })?;
        Ok(())
    };
    let parameters = |parameters: &mut ServiceParameters, path: &str| -> Result<(), Unknown> {
        for (name, value) in &mut parameters.environment {
            replace(value, &format!("{path}.environment.{name}"))?;
        }
        for mount in &mut parameters.volume_mounts {
            replace(&mut mount.volume_name, &format!("{path}.volume_mounts"))?;
        }
        Ok(())
    };
    replace(&mut job.manager_configuration, "manager_configuration")?;
    for volume in &mut job.volumes {
        replace(volume, "volumes")?;
    }
    for (index, service) in job.services.iter_mut().enumerate() {
        let path = format!("services[{index}]");
        replace(&mut service.command, &format!("{path}.command"))?;
        replace(&mut service.configuration, &format!("{path}.configuration"))?;
        if let Container::Process { command, .. } = &mut service.container {
            for word in command {
                replace(word, &format!("{path}.process.command"))?;
            }
        }
        parameters(&mut service.parameters, &format!("{path}.parameters"))?;
    }
    if let Some(media) = &mut job.media_parameters {
        parameters(media, "norsk_service_parameters")?;
    }
    Ok(())
}

/// The text with its placeholders replaced; the error is the unknown name.
fn replaced(text: &str, values: &BTreeMap<String, String>) -> Result<String, String> {
    let mut rest = text;
    let mut done = String::with_capacity(text.len());
    while let Some(at) = rest.find("{{") {
        done.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{{{{") {
            done.push_str("{{");
            rest = after;
            continue;
        }
        let inner = &rest[2..];
        let end = inner.find("}}").unwrap_or(inner.floor_char_boundary(40));
        let name = &inner[..end];
        let value = values.get(name.trim()).ok_or_else(|| name.to_owned())?;
        if !inner[end..].starts_with("}}") {
            return Err(name.to_owned());
        }
        done.push_str(value);
        rest = &inner[end + 2..];
    }
    done.push_str(rest);
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: BDL-05
    #[test]
    fn names_are_replaced_and_four_braces_are_two() {
        let values = [
            ("A".to_owned(), "1".to_owned()),
            ("B".to_owned(), "{{A}}".to_owned()),
        ]
        .into();
        for (text, want) in [
            ("", Ok("")),
            ("x {{A}} {{ A }}y", Ok("x 1 1y")),
            ("{{B}}", Ok("{{A}}")),
            ("{{{{A}}", Ok("{{A}}")),
            ("{ {A} }", Ok("{ {A} }")),
            ("{{C}}", Err("C")),
            ("{{A", Err("A")),
        ] {
            let got = replaced(text, &values);
            assert_eq!(
                got,
                want.map(str::to_owned).map_err(str::to_owned),
                "{text}"
            );
        }
    }
}
