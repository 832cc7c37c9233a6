//! The standard health protocol (API-10).

use greenroom_proto::health::health_check_response::ServingStatus;
use greenroom_proto::health::health_server::Health;
use greenroom_proto::health::{HealthCheckRequest, HealthCheckResponse};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::engine::Engine;

pub(crate) struct HealthApi {
    engine: Engine,
}

// === impl HealthApi ===

impl HealthApi {
    pub(crate) const fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

fn is_known(service: &str) -> bool {
    matches!(service, "" | "norsk.api.manager.Manager")
}

fn answer(serving: bool) -> HealthCheckResponse {
    let status = if serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl Health for HealthApi {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !is_known(&service) {
            return Err(Status::not_found(format!(
                "no service {service:?} is served here"
            )));
        }
        Ok(Response::new(answer(!*self.engine.stopping().borrow())))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<BoxStream<HealthCheckResponse>>, Status> {
        let known = is_known(&request.into_inner().service);
        let mut stopping = self.engine.stopping();
        let stream = async_stream::stream! {
            if !known {
                yield Ok(HealthCheckResponse { status: ServingStatus::ServiceUnknown.into() });
                // The stream stays open, as the protocol has it, for as long as the Manager serves.
                let _ = stopping.wait_for(|stopping| *stopping).await;
                return;
            }
            let ending = *stopping.borrow_and_update();
            yield Ok(answer(!ending));
            while stopping.changed().await.is_ok() {
                let ending = *stopping.borrow_and_update();
                yield Ok(answer(!ending));
                if ending {
                    return;
                }
            }
        };
        Ok(Response::new(Box::pin(stream)))
    }
}
