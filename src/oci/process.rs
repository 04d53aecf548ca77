//! Builds the process of the configuration: command, working directory, environment, user and limits.

use std::collections::HashMap;
use std::path::PathBuf;

use config::Rlimit;
use oci_spec::runtime::{
    LinuxCapabilitiesBuilder, PosixRlimit, PosixRlimitBuilder, Process, ProcessBuilder, UserBuilder,
};

use super::{OciError, SpecInputs, capabilities};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn process(given: &SpecInputs<'_>) -> Result<Process, OciError> {
    let security = &given.container.security;
    let sets = capabilities::sets(&given.handler.capabilities, security)?;
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(sets.bounding.clone())
        .effective(sets.bounding.clone())
        .permitted(sets.bounding)
        .inheritable(sets.ambient.clone())
        .ambient(sets.ambient)
        .build()?;
    let user = UserBuilder::default()
        .uid(given.process.user.uid)
        .gid(given.process.user.gid)
        .additional_gids(given.process.groups.to_vec())
        .umask(0o022u32)
        .build()?;
    let mut process = ProcessBuilder::default()
        .terminal(given.container.tty)
        .cwd(working_dir(given)?)
        .args(args(given)?)
        .env(env(given))
        .user(user)
        .capabilities(capabilities)
        .no_new_privileges(security.no_new_privs)
        .build()?;
    process.set_apparmor_profile(given.security.apparmor.clone());
    process.set_selinux_label(given.security.selinux.as_ref().and_then(|labels| labels.process.clone()));
    process.set_rlimits(Some(rlimits(given)?).filter(|limits| !limits.is_empty()));
    Ok(process)
}

fn rlimits(given: &SpecInputs<'_>) -> Result<Vec<PosixRlimit>, OciError> {
    let limit =
        |limit: &Rlimit| PosixRlimitBuilder::default().typ(limit.kind).soft(limit.soft).hard(limit.hard).build();
    Ok(given.handler.rlimits.iter().map(limit).collect::<Result<_, _>>()?)
}

/// Returns the command line. The container's command replaces the image's entrypoint and command;
/// the container's arguments replace the image's command.
fn args(given: &SpecInputs<'_>) -> Result<Vec<String>, OciError> {
    let (asked, image) = (given.container, given.image);
    let (entrypoint, rest) = if asked.command.is_empty() {
        (&image.entrypoint, if asked.args.is_empty() { &image.cmd } else { &asked.args })
    } else {
        (&asked.command, &asked.args)
    };
    let all: Vec<String> = entrypoint.iter().chain(rest).cloned().collect();
    if all.is_empty() { Err(OciError::NoCommand { image: asked.image.image.clone() }) } else { Ok(all) }
}

fn working_dir(given: &SpecInputs<'_>) -> Result<PathBuf, OciError> {
    let asked = &given.container.working_dir;
    let dir = if asked.is_empty() { &given.image.working_dir } else { asked };
    match dir.as_str() {
        "" => Ok(PathBuf::from("/")),
        absolute if absolute.starts_with('/') => Ok(PathBuf::from(absolute)),
        relative => Err(OciError::WorkingDir(relative.to_owned())),
    }
}

/// Returns the environment: defaults such as PATH, overridden by the image, by the container and by
/// its CDI devices, in this order.
fn env(given: &SpecInputs<'_>) -> Vec<String> {
    let mut env: Vec<String> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut set = |variable: String| {
        let name = variable.split('=').next().unwrap_or_default();
        match places.get(name) {
            Some(place) => env[*place] = variable,
            None => {
                places.insert(name.to_owned(), env.len());
                env.push(variable);
            }
        }
    };
    set(PATH.to_owned());
    set(format!("HOSTNAME={}", given.pod.hostname));
    if given.container.tty {
        set("TERM=xterm".to_owned());
    }
    set(format!("HOME={}", given.process.user.home));
    // Skip entries without a name.
    given.image.env.iter().filter(|e| e.find('=') > Some(0)).cloned().for_each(&mut set);
    given.container.envs.iter().map(|(k, v)| format!("{k}={v}")).for_each(&mut set);
    given.devices.edits.env.iter().cloned().for_each(&mut set);
    env
}
