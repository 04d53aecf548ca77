//! A trace collector for `tracing.endpoint`, which can also fail or hang.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use cri_api::otlp;
use cri_api::otlp::any_value::Value;
use cri_api::otlp::trace_service_server::{TraceService, TraceServiceServer};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

/// The behaviour of the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Takes,
    Refuses(Code),
    /// Accepts requests and never responds.
    Hangs,
    /// Rejects one span of each batch.
    Picks,
}

/// Listens on a loopback port until the test ends.
#[derive(Debug)]
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<otlp::ExportTraceServiceRequest>>>,
}

impl Collector {
    pub(crate) fn new(manner: Manner) -> Self {
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let service = TraceServiceServer::new(Taking { manner, requests: Arc::clone(&requests) });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        // Ends with the test program; no thread joins it.
        std::thread::spawn(move || {
            let clock = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            clock.block_on(async {
                let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
                Server::builder().add_service(service).serve_with_incoming(incoming).await.ok();
            });
        });
        Self { address, requests }
    }

    /// Returns the settings of a daemon that sends spans here.
    pub(crate) fn settings(&self) -> String {
        format!("[tracing]\nendpoint = \"{}\"\nservice_name = \"node-7\"\ntimeout = 2\n", self.address)
    }

    /// Returns all received spans.
    pub(crate) fn requests(&self) -> Vec<otlp::ExportTraceServiceRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn spans(&self) -> Vec<otlp::Span> {
        let resources = self.requests().into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }
}

/// Returns an attribute of a span as text.
pub(crate) fn attribute(attributes: &[otlp::KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.clone()?.value? {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(yes) => yes.to_string(),
        Value::DoubleValue(number) => number.to_string(),
    })
}

struct Taking {
    manner: Manner,
    requests: Arc<Mutex<Vec<otlp::ExportTraceServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Taking {
    async fn export(
        &self,
        request: Request<otlp::ExportTraceServiceRequest>,
    ) -> Result<Response<otlp::ExportTraceServiceResponse>, Status> {
        let partial = |rejected_spans| otlp::ExportTracePartialSuccess { rejected_spans, error_message: "odd".into() };
        let partial_success = match self.manner {
            Manner::Takes => None,
            Manner::Picks => Some(partial(1)),
            Manner::Refuses(code) => return Err(Status::new(code, "not today")),
            Manner::Hangs => std::future::pending().await,
        };
        self.requests.lock().unwrap().push(request.into_inner());
        Ok(Response::new(otlp::ExportTraceServiceResponse { partial_success }))
    }
}
