//! `greenroom discovery`: where the discovery fleet is, and the rotation of its secret.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use greenroom_sdk::Token;
use greenroom_sdk::types::discovery::{DiscoveryFleet, RotationStep};
use serde_json::{Value, json};

use super::connect::Manager;
use super::files::{read_text, refuse};
use crate::failure::{Failure, Outcome};

/// Where jobs find each other: the servers of the discovery fleet and their secrets.
#[derive(Debug, Args)]
pub(crate) struct Discovery {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Get(Get),
    Publish(Publish),
    Rotate(Rotate),
}

/// Print the fleet as the Manager has it.
#[derive(Debug, Args)]
struct Get {
    /// Print the secrets instead of ***.
    #[arg(long)]
    show_secrets: bool,
    #[command(flatten)]
    manager: Manager,
}

/// Say which servers there are; every node is told at once. The first publish fixes the secrets: they
/// are taken from files, or made.
#[derive(Debug, Args)]
struct Publish {
    /// A server, HOST:PORT; up to 16.
    #[arg(required = true, value_name = "HOST:PORT")]
    addresses: Vec<String>,
    /// File of the secret that every node shows.
    #[arg(long, value_name = "FILE")]
    leaf_token_file: Option<PathBuf>,
    /// Put the leaf token of that file in force although there is one. Nodes are told at once; jobs keep
    /// the old one until their next start.
    #[arg(long, requires = "leaf_token_file")]
    replace_leaf_token: bool,
    /// File of the secret by which servers tell nodes apart.
    #[arg(long, value_name = "FILE")]
    tier_secret_file: Option<PathBuf>,
    /// Who says so, for the audit log.
    #[arg(long, default_value = "")]
    by: String,
    /// Print the secrets instead of ***.
    #[arg(long)]
    show_secrets: bool,
    #[command(flatten)]
    manager: Manager,
}

/// Take one step of the rotation of the tier secret. After each, wait until every server has it.
#[derive(Debug, Args)]
struct Rotate {
    /// The step; they come in this order.
    step: Step,
    /// File of the next secret, for `stage`; the Manager makes one otherwise.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Who asks for it, for the audit log.
    #[arg(long, default_value = "")]
    by: String,
    /// Print the secrets instead of ***.
    #[arg(long)]
    show_secrets: bool,
    #[command(flatten)]
    manager: Manager,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Step {
    /// Bring the next secret; nodes are sent nothing.
    Stage,
    /// Put it in force; nodes are sent new tokens, old ones are taken still.
    Flip,
    /// Forget the one before; old tokens are taken no longer.
    Finish,
}

// === impl Discovery ===

impl Discovery {
    pub(crate) async fn run(self) -> Outcome {
        match self.verb {
            Verb::Get(get) => get.run().await,
            Verb::Publish(publish) => publish.run().await,
            Verb::Rotate(rotate) => rotate.run().await,
        }
    }
}

// === impl Get ===

impl Get {
    async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let output = self.manager.output();
        match client.get_discovery_fleet().await? {
            Some(fleet) => {
                let fleet = shown(&fleet, self.show_secrets);
                output.either(&as_json(&fleet), || as_text(&fleet))
            }
            None => output.either(&Value::Null, || {
                "no discovery fleet was published; `greenroom discovery publish` does".to_owned()
            }),
        }
    }
}

// === impl Publish ===

impl Publish {
    async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        // Who only moves servers need not know the secrets.
        let known = client.get_discovery_fleet().await?;
        let secret = |file: &Option<PathBuf>, kept: Option<&String>| match (file, kept) {
            (Some(file), _) => read_secret(file),
            (None, Some(kept)) => Ok(kept.clone()),
            (None, None) => Ok(greenroom_auth::hex(&greenroom_auth::random::<32>())),
        };
        let kept = known.as_ref();
        let fleet = DiscoveryFleet {
            addresses: self.addresses,
            leaf_token: secret(&self.leaf_token_file, kept.map(|it| &it.leaf_token))?,
            tier_secret: secret(&self.tier_secret_file, kept.map(|it| &it.tier_secret))?,
            ..DiscoveryFleet::default()
        };
        if let Some(kept) = kept {
            refuse_untaken(kept, &fleet, self.replace_leaf_token)?;
        }
        let published = match self.replace_leaf_token {
            true => client.replace_discovery_leaf_token(fleet, self.by).await?,
            false => client.publish_discovery_fleet(fleet, self.by).await?,
        };
        let fleet = shown(&published.fleet, self.show_secrets);
        let mut told = as_json(&fleet);
        told["secretsKept"] = json!(published.secrets_kept);
        self.manager.output().either(&told, || {
            let note = match published.secrets_kept {
                true => {
                    "\nthe secrets in force were kept; `greenroom discovery rotate` changes them"
                }
                false => "",
            };
            format!("{}{note}", as_text(&fleet))
        })
    }
}

// === impl Rotate ===

impl Rotate {
    async fn run(self) -> Outcome {
        let (step, next) = match self.step {
            Step::Stage => (RotationStep::Stage, "flip"),
            Step::Flip => (RotationStep::Flip, "finish"),
            Step::Finish => (RotationStep::Finish, ""),
        };
        let secret = self.secret_file.as_deref().map(read_secret).transpose()?;
        let client = self.manager.connect().await?;
        let rotated = client
            .rotate_discovery_tier_secret(step, secret.map(Token::new), self.by)
            .await?;
        let fleet = shown(&rotated.fleet, self.show_secrets);
        let mut told = as_json(&fleet);
        told["acknowledged"] = json!(rotated.acknowledged);
        told["notAcknowledged"] = json!(rotated.not_acknowledged);
        self.manager.output().either(&told, || {
            let mut text = as_text(&fleet);
            if matches!(self.step, Step::Flip) {
                let count = rotated.acknowledged;
                text.push_str(&format!("\n{count} nodes have their new token"));
                for node_id in &rotated.not_acknowledged {
                    text.push_str(&format!(
                        "\n{node_id} has not; it gets it at its next hello"
                    ));
                }
            }
            match next {
                "" => text.push_str("\nthe rotation is over"),
                next => text.push_str(&format!(
                    "\nonce every server has this: greenroom discovery rotate {next}"
                )),
            }
            text
        })
    }
}

// === helpers ===

/// A secret that was named and would not be put in force is refused before anything is changed.
fn refuse_untaken(
    known: &DiscoveryFleet,
    wanted: &DiscoveryFleet,
    replaces: bool,
) -> Result<(), Failure> {
    let refused = |what: &str, hint: &str| {
        let text = format!("another {what} is in force, and a publish does not change it");
        Err(Failure::failed(text).hint(hint).because("secrets_kept"))
    };
    if wanted.tier_secret != known.tier_secret {
        return refused("tier secret", "`greenroom discovery rotate` changes it");
    }
    if wanted.leaf_token != known.leaf_token && !replaces {
        return refused("leaf token", "--replace-leaf-token puts this one in force");
    }
    Ok(())
}

/// A secret of a file: its one line.
fn read_secret(file: &Path) -> Result<String, Failure> {
    let (name, text) = read_text(file).map_err(|problem| refuse(&[problem]))?;
    match text.trim() {
        "" => Err(Failure::bad_input(format!("{name} is empty"))),
        secret if secret.contains(char::is_whitespace) => {
            Err(Failure::bad_input(format!("{name} must hold one word")))
        }
        secret => Ok(secret.to_owned()),
    }
}

fn shown(fleet: &DiscoveryFleet, secrets: bool) -> DiscoveryFleet {
    match secrets {
        true => fleet.clone(),
        false => fleet.masked(),
    }
}

fn as_json(fleet: &DiscoveryFleet) -> Value {
    json!({
        "addresses": fleet.addresses,
        "leafToken": fleet.leaf_token,
        "tierSecret": fleet.tier_secret,
        "tierSecretAlt": fleet.tier_secret_alt,
        "rotationPhase": fleet.rotation_phase.word(),
    })
}

fn as_text(fleet: &DiscoveryFleet) -> String {
    let mut lines = vec![
        format!("servers      {}", fleet.addresses.join(", ")),
        format!("leaf token   {}", fleet.leaf_token),
        format!("tier secret  {}", fleet.tier_secret),
    ];
    let phase = fleet.rotation_phase.word();
    if !phase.is_empty() {
        lines.push(format!("other secret {} ({phase})", fleet.tier_secret_alt));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: DISC-02
    #[test]
    fn a_secret_that_would_not_be_taken_is_refused() {
        let fleet = |leaf: &str, tier: &str| DiscoveryFleet {
            leaf_token: leaf.to_owned(),
            tier_secret: tier.to_owned(),
            ..DiscoveryFleet::default()
        };
        let known = fleet("leaf", "tier");
        let hint = |wanted: DiscoveryFleet, replaces: bool| {
            let refused = refuse_untaken(&known, &wanted, replaces);
            refused.err().and_then(|failure| failure.hint)
        };
        assert_eq!(hint(fleet("leaf", "tier"), false), None);
        assert_eq!(hint(fleet("other", "tier"), true), None);
        let leaf = hint(fleet("other", "tier"), false).unwrap();
        assert!(leaf.contains("--replace-leaf-token"), "{leaf}");
        let tier = hint(fleet("leaf", "other"), true).unwrap();
        assert!(tier.contains("discovery rotate"), "{tier}");
    }
}
