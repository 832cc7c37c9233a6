//! `greenroom spares` and `templates`: live changes of what the control plane keeps ready. They hold
//! until they are set back (ACTS).

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use greenroom_console::client::ClientError;
use greenroom_manifest::{Locations, Problem};
use greenroom_policy::spare::{HotSpareChanges, HotSpareDiff, HotSpareSpecsDiff};
use greenroom_policy::{ApiAnswer, ApiCall};
use greenroom_sdk::types::{NodeId, TemplateName};

use super::control::{Control, lost};
use super::files::{read_text, refuse};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, Table, word};

/// Hot spares: list them, replace the list of those wanted, change one.
#[derive(Debug, Args)]
pub(crate) struct Spares {
    #[command(subcommand)]
    action: SparesAction,
}

#[derive(Debug, Subcommand)]
enum SparesAction {
    /// List the pools with the spares they want and have, and the spare nodes.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Replace the list of spares wanted, until it is set to that of the settings again.
    Set {
        /// A list as under `hotSpares` in the settings, or settings that have one.
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Change what one free spare is for; what is not named stays.
    Edit {
        /// The spare node, by id.
        node: NodeId,
        /// Templates whose images it is to hold, separated by commas; empty for none.
        #[arg(long, value_name = "TEMPLATES")]
        warm_for: Option<String>,
        /// Templates whose jobs it attracts, separated by commas; empty for none.
        #[arg(long, value_name = "TEMPLATES")]
        reserved_for: Option<String>,
        /// Whether jobs of other templates are kept off it.
        #[arg(long, value_name = "BOOL")]
        exclusive: Option<bool>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        control: Control,
    },
}

/// Templates: list them with their images, change which images belong to one.
#[derive(Debug, Args)]
pub(crate) struct Templates {
    #[command(subcommand)]
    action: TemplatesAction,
}

#[derive(Debug, Subcommand)]
enum TemplatesAction {
    /// List the templates and their images.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Replace the images of a template, until they are set to those of the settings again.
    Set {
        /// The template.
        template: TemplateName,
        /// Its images; none takes the template away.
        #[arg(value_name = "IMAGE")]
        images: Vec<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        control: Control,
    },
}

// === impl Spares ===

impl Spares {
    pub(crate) async fn run(self) -> Outcome {
        match self.action {
            SparesAction::List { json, control } => list(&control, Output { json }).await,
            SparesAction::Set {
                file,
                json,
                control,
            } => set(&control, &file, Output { json }).await,
            SparesAction::Edit {
                node,
                warm_for,
                reserved_for,
                exclusive,
                json,
                control,
            } => {
                let changes = HotSpareChanges {
                    warm_for: warm_for.as_deref().map(names),
                    reserved_for: reserved_for.as_deref().map(names),
                    exclusive,
                };
                if changes == HotSpareChanges::default() {
                    let text = "nothing to change: give --warm-for, --reserved-for or --exclusive";
                    return Err(Failure::bad_input(text));
                }
                edit(&control, node, changes, Output { json }).await
            }
        }
    }
}

async fn list(control: &Control, output: Output) -> Outcome {
    let client = control.client();
    let metrics = client.metrics().await.map_err(|error| lost(&error))?;
    let nodes = client.nodes().await.map_err(|error| lost(&error))?;
    let nodes: Vec<_> = nodes
        .into_iter()
        .filter(|row| row.node.tags.get("spare").map(String::as_str) == Some("true"))
        .collect();
    let told = serde_json::json!({"pools": metrics.pools, "nodes": nodes});
    output.either(&told, || {
        let mut pools = Table::new(&["POOL", "WANTED", "READY"]);
        for pool in &metrics.pools {
            pools.row(vec![
                pool.pool_name.to_string(),
                pool.spare_target.to_string(),
                pool.live_spares.to_string(),
            ]);
        }
        let mut text = pools.render();
        if !nodes.is_empty() {
            let mut table = Table::new(&[
                "SPARE",
                "STATE",
                "POOL",
                "WARM FOR",
                "RESERVED FOR",
                "READY",
            ]);
            for row in &nodes {
                let tag = |key: &str| row.node.tags.get(key).cloned().unwrap_or_default();
                table.row(vec![
                    row.node.node_id.to_string(),
                    word(&row.node.state),
                    tag("pool"),
                    tag("warmFor"),
                    reserved_for(&tag("reservedFor"), tag("exclusive") == "true"),
                    match &row.spare_hindrance {
                        None => "yes".to_owned(),
                        Some(why) => format!("no: {why}"),
                    },
                ]);
            }
            text.push('\n');
            text.push_str(&table.render());
        }
        text
    })
}

/// For whom a spare is kept, and whether it takes nobody else.
fn reserved_for(templates: &str, exclusive: bool) -> String {
    match exclusive && !templates.is_empty() {
        true => format!("{templates} alone"),
        false => templates.to_owned(),
    }
}

async fn set(control: &Control, file: &std::path::Path, output: Output) -> Outcome {
    let (name, text) = read_text(file).map_err(|problem| refuse(&[problem]))?;
    let trees = greenroom_manifest::read_trees(&name, &text);
    let trees: Vec<serde_json::Value> = trees.map_err(|problem| refuse(&[problem]))?;
    let [tree] = trees.as_slice() else {
        let count = trees.len();
        let text = format!("{name}: it must hold one document, and holds {count}");
        return Err(Failure::bad_input(text));
    };
    let hot_spares = match tree {
        serde_json::Value::Object(keys) => match keys.get("hotSpares") {
            Some(list) => list.clone(),
            None => {
                let text = format!("{name}: there is no hotSpares in it, and it is no list");
                return Err(Failure::bad_input(text));
            }
        },
        other => other.clone(),
    };
    let call = ApiCall::UpdateHotSpareSpecs { hot_spares };
    let answer = control.client().call(&call).await;
    let answer = answer.map_err(|error| match &error {
        ClientError::Refused { faults, .. } if !faults.is_empty() => {
            let places = Locations::of(&text).unwrap_or_default();
            let problems = faults.iter().map(|fault| {
                // A file that is the list itself has no key above it.
                let inner = fault
                    .path
                    .strip_prefix("hotSpares")
                    .filter(|_| tree.is_array());
                Problem {
                    file: name.clone(),
                    position: places.position(0, inner.unwrap_or(&fault.path)),
                    path: fault.path.clone(),
                    message: format!("{} ({})", fault.message, fault.code.name()),
                }
            });
            refuse(&problems.collect::<Vec<_>>())
        }
        ClientError::Refused {
            status: 400,
            message,
            ..
        } => Failure::bad_input(format!("{name}: {message}")),
        _ => lost(&error),
    })?;
    let ApiAnswer::HotSpareSpecs(diff) = answer else {
        return Err(Failure::failed(
            "the control plane did not say what changed",
        ));
    };
    output.either(&diff, || in_words(&diff))
}

fn in_words(diff: &HotSpareSpecsDiff) -> String {
    if diff.is_empty() {
        return "nothing changed".to_owned();
    }
    let mut lines = Vec::new();
    for (pool, change) in diff {
        match change {
            HotSpareDiff::Added => lines.push(format!("pool {pool}: spares are wanted now")),
            HotSpareDiff::Removed => lines.push(format!("pool {pool}: no spares are wanted now")),
            HotSpareDiff::Changed(fields) => {
                for (field, change) in fields {
                    let (before, after) = (told(&change.before), told(&change.after));
                    lines.push(format!("pool {pool}: {field} {before} -> {after}"));
                }
            }
        }
    }
    lines.join("\n")
}

/// A value in plain words.
fn told(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        Value::Array(values) => values.iter().map(told).collect::<Vec<_>>().join(", "),
        Value::Object(keys) => {
            let set = keys.iter().filter(|(_, value)| value.as_str() != Some(""));
            let set: Vec<String> = set
                .map(|(key, value)| format!("{key} {}", told(value)))
                .collect();
            match set.is_empty() {
                true => "none".to_owned(),
                false => set.join(", "),
            }
        }
        other => other.to_string(),
    }
}

async fn edit(
    control: &Control,
    node_id: NodeId,
    changes: HotSpareChanges,
    output: Output,
) -> Outcome {
    let told = serde_json::json!({"nodeId": node_id, "changes": changes});
    let call = ApiCall::UpdateHotSpareNode {
        node_id: node_id.clone(),
        changes,
    };
    let answer = control.client().call(&call).await;
    answer.map_err(|error| match &error {
        ClientError::Refused { code, .. } if code == "notASpare" => {
            Failure::failed(format!("node {node_id} is no spare that is free"))
                .hint("`greenroom spares list` lists the spares")
        }
        ClientError::Refused {
            status: 400,
            message,
            ..
        } => Failure::bad_input(message.clone()),
        _ => lost(&error),
    })?;
    output.either(&told, || format!("spare {node_id} is changed"))
}

fn names(text: &str) -> Vec<TemplateName> {
    let names = text.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(TemplateName::new)
        .collect()
}

// === impl Templates ===

impl Templates {
    pub(crate) async fn run(self) -> Outcome {
        let (template, images, json, control) = match self.action {
            TemplatesAction::List { json, control } => {
                let templates = control.client().templates().await;
                let templates = templates.map_err(|error| lost(&error))?;
                return Output { json }.either(&templates, || list_templates(&templates));
            }
            TemplatesAction::Set {
                template,
                images,
                json,
                control,
            } => (template, images, json, control),
        };
        if images.is_empty() {
            let known = control.client().templates().await;
            let known = known.map_err(|error| lost(&error))?;
            if !known.contains_key(&template) {
                let text = format!("there is no template {template}, so none is taken away");
                return Err(Failure::failed(text)
                    .because("unknown_template")
                    .hint("`greenroom templates list` lists them"));
            }
        }
        let call = ApiCall::SetTemplateImages {
            template: template.clone(),
            refs: images.clone(),
        };
        let answer = control.client().call(&call).await;
        answer.map_err(|error| match &error {
            ClientError::Refused {
                status: 400,
                message,
                ..
            } => Failure::bad_input(message.clone()),
            _ => lost(&error),
        })?;
        let told = serde_json::json!({"template": template, "images": images});
        Output { json }.either(&told, || match images.len() {
            0 => format!("template {template} is taken away"),
            1 => format!("template {template} has 1 image"),
            count => format!("template {template} has {count} images"),
        })
    }
}

/// One line for each image.
fn list_templates(templates: &BTreeMap<TemplateName, Vec<String>>) -> String {
    if templates.is_empty() {
        return "there is no template with images".to_owned();
    }
    let mut table = Table::new(&["TEMPLATE", "IMAGE"]);
    for (template, images) in templates {
        for image in images {
            table.row(vec![template.to_string(), image.clone()]);
        }
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_changes_is_told_in_words_and_not_as_data() {
        let spec = json!({"instanceType": "c.large", "region": "", "az": "ad-1"});
        assert_eq!(told(&spec), "az ad-1, instanceType c.large");
        assert_eq!(told(&json!({"region": ""})), "none");
        assert_eq!(told(&json!(["a", "b"])), "a, b");
        assert_eq!(
            (told(&json!([])), told(&json!(true))),
            ("none".to_owned(), "true".to_owned())
        );
        assert_eq!(reserved_for("a,b", true), "a,b alone");
        assert_eq!(
            (reserved_for("a", false), reserved_for("", true)),
            ("a".to_owned(), String::new())
        );
    }
}
