//! Creates user namespaces, and makes a process root in one.
//!
//! A process that enters a user namespace cannot leave it again, so the shim never enters one: a
//! child creates it and exits, and a descriptor keeps the namespace.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use model::{UserNs, id_map_text};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Pid;
use rustix::process::{DumpableBehavior, WaitOptions};
use rustix::thread::{Gid, Uid};
use sys::fork::SingleThread;

use crate::namespaces::saved_namespaces::KINDS;

/// A user namespace, and others that it owns.
#[derive(Debug)]
pub struct CreatedNamespaces {
    pub user: OwnedFd,
    others: Vec<(CloneFlags, File)>,
}

impl CreatedNamespaces {
    /// Enters the other namespaces. The caller returns from them.
    pub fn enter_others(&self) -> io::Result<()> {
        self.others.iter().try_for_each(|(kind, space)| Ok(setns(space, *kind)?))
    }
}

/// Creates a user namespace with the ids `ids`, and in it a namespace of each of `kinds`.
pub fn create(ids: &UserNs, kinds: CloneFlags) -> io::Result<CreatedNamespaces> {
    let (reader, writer) = io::pipe()?;
    let (wait, go_on) = io::pipe()?;
    let maker = sys::fork::fork(SingleThread::check()?, move || {
        let closed = sys::fork::close_all_but(&[writer.as_fd(), wait.as_fd()]);
        match closed.and_then(|()| create_in_child(kinds, &writer, &wait)) {
            Ok(()) => 0,
            Err(error) => {
                (&writer).write_all(error.to_string().as_bytes()).ok();
                1
            }
        }
    })?;
    let created = take(maker, ids, kinds, reader, &go_on);
    drop(go_on);
    reap(maker)?;
    created
}

/// The message of the child when its part is done; any other message is its error.
const DONE: &[u8] = b"\0";

/// In the child: creates the namespaces, and waits until the parent has opened them.
fn create_in_child(kinds: CloneFlags, mut writer: &PipeWriter, mut wait: &PipeReader) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    writer.write_all(DONE)?;
    wait.read_exact(&mut [0])?;
    if !kinds.is_empty() {
        become_root()?;
        unshare(kinds)?;
    }
    writer.write_all(DONE)?;
    wait.read_to_end(&mut Vec::new()).map(drop)
}

/// In the parent: gives the namespace its ids, and opens all that the child created.
fn take(
    maker: Pid,
    ids: &UserNs,
    kinds: CloneFlags,
    mut reader: PipeReader,
    mut go_on: &PipeWriter,
) -> io::Result<CreatedNamespaces> {
    let open = |name: &str| File::open(format!("/proc/{maker}/ns/{name}"));
    done(&mut reader)?;
    std::fs::write(format!("/proc/{maker}/uid_map"), id_map_text(&ids.uids))?;
    std::fs::write(format!("/proc/{maker}/gid_map"), id_map_text(&ids.gids))?;
    go_on.write_all(DONE)?;
    done(&mut reader)?;
    let others = KINDS.into_iter().filter(|(kind, _)| kinds.contains(*kind));
    let others = others.map(|(kind, name)| Ok((kind, open(name)?))).collect::<io::Result<_>>()?;
    Ok(CreatedNamespaces { user: open("user")?.into(), others })
}

fn done(reader: &mut PipeReader) -> io::Result<()> {
    let mut message = [0; 256];
    match reader.read(&mut message)? {
        n if &message[..n] == DONE => Ok(()),
        0 => Err(io::Error::other("the process that creates it exited without a message")),
        n => Err(io::Error::other(String::from_utf8_lossy(&message[..n]).into_owned())),
    }
}

fn reap(child: Pid) -> io::Result<()> {
    rustix::process::waitpid(rustix::process::Pid::from_raw(child.as_raw()), WaitOptions::empty())?;
    Ok(())
}

/// Makes this process root of the user namespace that it has just entered, without any group of the
/// host. Other processes of the namespace still cannot trace it: a host may be set to allow that
/// after each change of the user.
pub fn become_root() -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Runs `child` in a new process that is forked inside of other namespaces, a user namespace among
/// them, and is a child of this process. Its pid is the one in the namespace of this process.
///
/// An intermediate process enters the namespaces by `enter`, forks and exits. Its child is
/// reparented to the shim, which is a subreaper.
pub fn fork_in_userns(enter: impl FnOnce() -> io::Result<()>, child: impl FnOnce() -> i32) -> io::Result<Pid> {
    let (mut reader, mut writer) = io::pipe()?;
    // Both before entering: the intermediate process may have no access to /proc then.
    let (proof, proof_there) = (SingleThread::check()?, SingleThread::check()?);
    let between = sys::fork::fork(proof, move || {
        let written = match enter().and_then(|()| sys::fork::fork(proof_there, child)) {
            Ok(pid) => writer.write_all(format!("{pid}").as_bytes()),
            Err(error) => writer.write_all(error.to_string().as_bytes()),
        };
        i32::from(written.is_err())
    })?;
    let mut message = [0; 256];
    // One write, read whole. The new process may have the pipe open too, so its end is not waited
    // for.
    let received = reader.read(&mut message);
    reap(between)?;
    let message = String::from_utf8_lossy(&message[..received?]).into_owned();
    match message.parse() {
        Ok(pid) => Ok(Pid::from_raw(pid)),
        Err(_) if message.is_empty() => Err(io::Error::other("the intermediate process exited without a message")),
        Err(_) => Err(io::Error::other(message)),
    }
}
