//! Converts the requests Exec, Attach and PortForward.

use cri_api::v1;
use streaming::remote_command::StdioOptions;

use super::container::{command, each, id};
use super::{FieldPath, InvalidField};

pub(crate) fn exec(asked: v1::ExecRequest) -> Result<(String, Vec<String>, StdioOptions), InvalidField> {
    let v1::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr } = asked;
    Ok((id("container_id", container_id)?, command(cmd)?, stdio_options(StdioOptions { stdin, stdout, stderr, tty })?))
}

pub(crate) fn attach(asked: v1::AttachRequest) -> Result<(String, StdioOptions), InvalidField> {
    let v1::AttachRequest { container_id, stdin, tty, stdout, stderr } = asked;
    Ok((id("container_id", container_id)?, stdio_options(StdioOptions { stdin, stdout, stderr, tty })?))
}

/// Returns the pod and its ports; without ports, all are allowed.
pub(crate) fn port_forward(asked: v1::PortForwardRequest) -> Result<(String, Vec<u16>), InvalidField> {
    let v1::PortForwardRequest { pod_sandbox_id, port } = asked;
    let ports = each(FieldPath::top("port"), port, |at, port| match u16::try_from(port) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(at.invalid(format_args!("{port} must be 1 to {}", u16::MAX))),
    });
    Ok((id("pod_sandbox_id", pod_sandbox_id)?, ports?))
}

fn stdio_options(wants: StdioOptions) -> Result<StdioOptions, InvalidField> {
    let StdioOptions { stdin, stdout, stderr, tty } = wants;
    if tty && stderr {
        return Err(FieldPath::top("stderr").invalid("must be false if tty is true"));
    }
    if !stdin && !stdout && !stderr {
        return Err(FieldPath::top("stdout").invalid("one of stdin, stdout and stderr must be true"));
    }
    Ok(wants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_no_stderr_and_one_stream_is_required() {
        let ask = |stdin, stdout, stderr, tty| {
            let cmd = vec!["true".to_owned()];
            exec(v1::ExecRequest { container_id: "c".into(), cmd, stdin, stdout, stderr, tty })
                .map(|(_, _, wants)| wants)
        };
        let all = StdioOptions { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(ask(true, true, true, false), Ok(all));
        assert!(ask(true, true, true, true).unwrap_err().to_string().starts_with("stderr: "));
        assert!(ask(false, false, false, true).unwrap_err().to_string().starts_with("stdout: "));
        let empty = v1::ExecRequest { container_id: "c".into(), stdout: true, ..Default::default() };
        assert!(exec(empty).unwrap_err().to_string().starts_with("cmd: "));
        let nobody = v1::AttachRequest { stdout: true, ..Default::default() };
        assert!(attach(nobody).unwrap_err().to_string().starts_with("container_id: "));
    }

    #[test]
    fn ports_are_ports() {
        let ask =
            |port: &[i32]| port_forward(v1::PortForwardRequest { pod_sandbox_id: "p".into(), port: port.to_vec() });
        assert_eq!(ask(&[]), Ok(("p".into(), vec![])));
        assert_eq!(ask(&[80, 65535]), Ok(("p".into(), vec![80, 65535])));
        for bad in [0, -1, 65536] {
            assert!(ask(&[80, bad]).unwrap_err().to_string().starts_with("port[1]: "), "{bad}");
        }
    }
}
