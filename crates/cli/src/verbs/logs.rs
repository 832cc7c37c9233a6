//! `greenroom logs`: what a job's services wrote.

use clap::Args;
use greenroom_sdk::proto::convert::refusal::read_refusal;
use greenroom_sdk::proto::logs::ReadRequest;
use greenroom_sdk::proto::logs::logs_client::LogsClient;

use super::connect::{HINT, Manager, unreached};
use super::media::chain;
use crate::failure::{Failure, Outcome};

/// Print what a job's services wrote.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The job, by id.
    job: String,
    /// Go on with new lines until the instance is over.
    #[arg(short, long)]
    follow: bool,
    /// Only this service.
    #[arg(long, default_value = "")]
    service: String,
    /// Only the newest lines of each service.
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Only the instance in this role, e.g. backup.
    #[arg(long, default_value = "")]
    role: String,
    #[command(flatten)]
    manager: Manager,
}

// === impl Logs ===

impl Logs {
    pub(crate) async fn run(self) -> Outcome {
        let url = self.manager.manager.first().cloned().unwrap_or_default();
        let mut client = LogsClient::connect(url.clone())
            .await
            .map_err(|error| Failure::failed(unreached(&url, &chain(&error))).hint(HINT))?;
        let request = ReadRequest {
            job_id: self.job.clone(),
            role: self.role,
            start_id: String::new(),
            service: self.service,
            tail: self.tail,
            follow: self.follow,
        };
        let job = self.job;
        let refused = |status: tonic::Status| match read_refusal(&status) {
            Some(refusal) if refusal.reason == "unknown_job" => {
                Failure::failed(format!("there is no job {job}"))
                    .hint("`greenroom get jobs` lists them")
            }
            Some(refusal) => Failure::failed(refusal.to_string()),
            None => Failure::failed(format!("the lines ended: {}", status.message())),
        };
        let mut lines = client.read(request).await.map_err(refused)?.into_inner();
        let output = self.manager.output();
        while let Some(some) = lines.message().await.map_err(refused)? {
            for line in some.lines {
                let told = serde_json::json!({
                    "nodeId": some.node_id, "startId": some.start_id,
                    "service": line.service, "stream": line.stream, "text": line.text,
                });
                output.either(&told, || format!("{}: {}", line.service, line.text))?;
            }
        }
        Ok(())
    }
}
