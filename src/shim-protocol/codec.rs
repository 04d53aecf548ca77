//! Encodes messages as JSON packets, and decodes those of older and newer versions.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes that are not a valid message, or a message that is too long.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a message between daemon and shim has {0} bytes, too many for one packet")]
    TooLong(usize),
    #[error("received an invalid message between daemon and shim")]
    Json(#[from] serde_json::Error),
}

pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > sys::seqpacket::MAX { Err(FrameError::TooLong(bytes.len())) } else { Ok(bytes) }
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    Ok(serde_json::from_slice(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Event, ExecRequest, LaunchWarningKind, Request, Response, Sandbox, SandboxRequest, ShimError, ShimErrorKind,
        ShimMessage, ShimRequest,
    };

    #[test]
    fn a_message_of_a_newer_version_with_more_fields_is_decoded() {
        let newer = br#"{"number":4,"request":{"hello":{"protocol":9,"release":"9.0","colour":"blue"}},"urgency":3}"#;
        let ShimRequest { number: 4, request: Request::Hello { protocol: 9, .. } } = decode(newer).unwrap() else {
            panic!()
        };
    }

    #[test]
    fn a_sandbox_of_an_older_shim_has_no_user_namespace() {
        let older = br#"{"network":"/n","ipc":null,"uts":null,"pid":null,"shm":null}"#;
        assert_eq!(decode(older).ok(), Some(Sandbox { network: Some("/n".into()), ..Sandbox::default() }));
        let asked = br#"{"dir":"/d","namespaces":{"network":true,"ipc":true,"uts":true,"pid":false},"hostname":"h",
            "sysctls":{},"shm_size":1,"oom_score_adj":0}"#;
        assert_eq!(decode::<SandboxRequest>(asked).unwrap().user, None);
    }

    #[test]
    fn an_exec_of_an_older_daemon_has_no_score() {
        let id = "ab".repeat(32);
        let older = format!(
            r#"{{"container":"{id}","exec":1,"args":["true"],"stdio":{{"stdin":false,"stdout":true,"stderr":true}}}}"#
        );
        assert_eq!(decode::<ExecRequest>(older.as_bytes()).unwrap().oom_score_adj, None);
    }

    #[test]
    fn an_unknown_failure_kind_is_internal_and_an_unknown_request_is_an_error() {
        let newer = br#"{"response":{"number":1,"result":{"Err":{"kind":"too_blue","message":"m"}}}}"#;
        let ShimMessage::Response { result: Err(failure), .. } = decode(newer).unwrap() else { panic!() };
        assert_eq!(failure, ShimError { kind: ShimErrorKind::Internal, message: "m".into() });
        assert!(decode::<ShimRequest>(br#"{"number":1,"request":{"dance":{}}}"#).is_err());
    }

    #[test]
    fn created_containers_of_older_and_newer_shims_are_decoded() {
        let older = br#"{"created":{"pid":7,"warnings":["w"]}}"#;
        let Response::Created { pid: 7, warnings, launch_warnings } = decode(older).unwrap() else { panic!() };
        assert_eq!((warnings, launch_warnings), (vec!["w".to_owned()], vec![]));
        let newer = br#"{"created":{"pid":7,"warnings":["w"],"launch_warnings":[{"kind":"too_blue","message":"w"}]}}"#;
        let Response::Created { launch_warnings, .. } = decode(newer).unwrap() else { panic!() };
        assert_eq!(launch_warnings, [LaunchWarningKind::Other.warning("w")]);
    }

    #[test]
    fn an_encoded_message_is_decoded_to_the_same() {
        let message = ShimMessage::Event(Event::ExecExited { exec: 7, code: 3 });
        let ShimMessage::Event(Event::ExecExited { exec: 7, code: 3 }) = decode(&encode(&message).unwrap()).unwrap()
        else {
            panic!()
        };
        let message = ShimMessage::Response { number: 1, result: Ok(Response::Done) };
        assert!(matches!(
            decode(&encode(&message).unwrap()).unwrap(),
            ShimMessage::Response { number: 1, result: Ok(Response::Done) }
        ));
    }

    #[test]
    fn a_message_that_does_not_fit_in_a_packet_is_refused() {
        assert!(matches!(encode(&"x".repeat(sys::seqpacket::MAX)), Err(FrameError::TooLong(_))));
    }
}
