//! The outcome of a command, as sent to clients.

use serde_json::{Value, json};

/// The outcome of an exec or attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Success: the command exited with 0, or there was no command to wait for.
    Success,
    /// The exit code of the command, not 0.
    Exit(i32),
    /// The command could not be run, or not to its end.
    Failed(String),
}

impl Outcome {
    /// Returns the Kubernetes `Status` for clients of version 4 and later.
    pub(crate) fn json(&self) -> String {
        let status: Value = match self {
            Self::Success => json!({ "metadata": {}, "status": "Success" }),
            Self::Exit(code) => json!({
                "metadata": {}, "status": "Failure", "message": self.text(), "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Self::Failed(_) => json!({
                "metadata": {}, "status": "Failure", "message": self.text(), "reason": "InternalError", "code": 500,
            }),
        };
        status.to_string()
    }

    /// Returns the text for older clients; empty on success.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Success => String::new(),
            Self::Exit(code) => format!("command terminated with non-zero exit code: exit status {code}"),
            Self::Failed(why) => format!("Internal error occurred: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_the_fields_that_clients_use() {
        assert_eq!(Outcome::Success.json(), r#"{"metadata":{},"status":"Success"}"#);
        let exit: Value = serde_json::from_str(&Outcome::Exit(3).json()).unwrap();
        assert_eq!((&exit["status"], &exit["reason"]), (&json!("Failure"), &json!("NonZeroExitCode")));
        assert_eq!(exit["details"]["causes"], json!([{ "reason": "ExitCode", "message": "3" }]));
        let failed: Value = serde_json::from_str(&Outcome::Failed("no \"quotes\"".into()).json()).unwrap();
        assert_eq!(failed["message"], "Internal error occurred: no \"quotes\"");
        assert_eq!((&failed["reason"], &failed["code"]), (&json!("InternalError"), &json!(500)));
    }
}
