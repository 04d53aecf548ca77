//! RegisterPlugin and Configure.

use prost::Message as _;
use tokio::sync::mpsc;

use super::Registered;
use crate::api::{ConfigureRequest, ConfigureResponse, Empty, RegisterPluginRequest};
use crate::event::{EventMask, UnknownEvents};
use crate::identity::{Identity, InvalidIdentity};
use crate::settings::Settings;
use crate::wire::{Arrived, Call, CallError, CloseReason, Code, Connection, FLAT, decode};

/// The version of NRI that crisp speaks.
const NRI_VERSION: &str = "v0.12.2";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// A plugin that could not be registered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("not registered within {} ms", .0.as_millis())]
    TimedOut(std::time::Duration),
    #[error("the connection ended before the registration: {0}")]
    Closed(CloseReason),
    #[error("the first call is {0:?}, expected RegisterPlugin")]
    NotRegistered(String),
    #[error("RegisterPlugin: {0}")]
    Malformed(CallError),
    #[error("RegisterPlugin: {0}")]
    Identity(#[from] InvalidIdentity),
    #[error("configure: {0}")]
    Configure(CallError),
    #[error("configure: {0}")]
    Events(#[from] UnknownEvents),
}

/// The parameters of a registration.
#[derive(Debug)]
pub(crate) struct Registration<'a> {
    pub(crate) settings: &'a Settings,
    /// The identity of a launched plugin, which its registration does not change, and its
    /// configuration.
    pub(crate) launched: Option<(&'a Identity, String)>,
    pub(crate) number: u64,
}

/// Registers and configures the plugin at the other end. Must be called within a time limit.
pub(crate) async fn register(
    connection: Connection,
    requests: &mut mpsc::Receiver<Arrived>,
    registration: Registration<'_>,
) -> Result<Registered, HandshakeError> {
    let Registration { settings, launched, number } = registration;
    let is_launched = launched.is_some();
    let Some(Arrived { request, reply }) = requests.recv().await else {
        return Err(HandshakeError::Closed(connection.closed().await));
    };
    if request.method != "RegisterPlugin" || request.service != RUNTIME_SERVICE {
        reply.error(Code::FailedPrecondition, "expected RegisterPlugin");
        return Err(HandshakeError::NotRegistered(request.method.chars().take(64).collect()));
    }
    let plugin: RegisterPluginRequest = decode(&request.payload, &FLAT).map_err(HandshakeError::Malformed)?;
    let (identity, config) = match launched {
        Some((identity, config)) => (identity.clone(), config),
        None => match Identity::new(&plugin.plugin_idx, &plugin.plugin_name) {
            Ok(identity) => (identity, String::new()),
            Err(error) => {
                reply.error(Code::InvalidArgument, &error.to_string());
                return Err(error.into());
            }
        },
    };
    reply.ok(&Empty {});

    let milliseconds = |time: std::time::Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let request = ConfigureRequest {
        config,
        runtime_name: settings.runtime_name.clone(),
        runtime_version: settings.runtime_version.clone(),
        registration_timeout: milliseconds(settings.registration_timeout),
        request_timeout: milliseconds(settings.request_timeout(identity.name())),
        nri_version: NRI_VERSION.to_owned(),
    };
    let configure = async {
        let timeout = settings.registration_timeout;
        let call = Call { method: "Configure", payload: request.encode_to_vec(), timeout, traceparent: None };
        let answer = connection.send(call).await?.wait().await?;
        decode::<ConfigureResponse>(&answer, &FLAT)
    };
    let answer = configure.await.map_err(HandshakeError::Configure)?;
    let events = EventMask::parse(answer.events)?;
    Ok(Registered::new(identity, connection, events, &plugin.nri_version, (is_launched, number)))
}
