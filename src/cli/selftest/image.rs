//! Builds an image from this program and its shared libraries.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::elf::{self, Loaded};

/// The program in the image.
pub(super) const PROGRAM: &str = "/crisp";
const EXE: &str = "/proc/self/exe";
/// Directory of the shared libraries in the image, by soname.
const LIBRARIES: &str = "lib";

/// Builds an archive in a memfd, which needs no cleanup; the daemon opens it through `/proc/PID/fd`.
pub(super) fn archive(name: &str) -> io::Result<OwnedFd> {
    let layer = layer()?;
    let digest: String = Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": architecture(), "os": "linux",
        "config": {
            "Entrypoint": [PROGRAM, "demo-workload"],
            "Env": [format!("LD_LIBRARY_PATH=/{LIBRARIES}")],
            // Makes the image ID unique, so that a run does not remove the image of another run.
            "Labels": { "io.crisp.trial": name },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }]);
    let mut archive = tar::Builder::new(Vec::new());
    file(&mut archive, "manifest.json", 0o644, manifest.to_string().as_bytes())?;
    file(&mut archive, "config.json", 0o644, config.to_string().as_bytes())?;
    file(&mut archive, "layer.tar", 0o644, &layer)?;
    sys::memfd::sealed("crisp-trial", &archive.into_inner()?[..])
}

/// Returns this machine's architecture as in an image config.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn layer() -> io::Result<Vec<u8>> {
    let mut program = Vec::new();
    fs::File::open(EXE)?.read_to_end(&mut program)?;
    let Loaded { bytes, interpreter } = elf::loaded(program)?;
    let mut layer = tar::Builder::new(Vec::new());
    for (dir, mode) in [("dev", 0o755), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777)] {
        directory(&mut layer, dir, mode)?;
    }
    file(&mut layer, PROGRAM.trim_start_matches('/'), 0o755, &bytes)?;
    if let Some(interpreter) = interpreter {
        directory(&mut layer, LIBRARIES, 0o755)?;
        if let Some(above) = Path::new(&interpreter).parent().filter(|above| *above != Path::new("/lib")) {
            directory(&mut layer, &above.display().to_string(), 0o755)?;
        }
        file(&mut layer, &interpreter, 0o755, &fs::read(&interpreter)?)?;
        for (name, path) in libraries(&interpreter)? {
            file(&mut layer, &format!("{LIBRARIES}/{name}"), 0o755, &fs::read(path)?)?;
        }
    }
    layer.into_inner()
}

/// Returns name and path of each library that the dynamic linker finds for this program.
fn libraries(interpreter: &str) -> io::Result<Vec<(String, String)>> {
    let ourselves = format!("/proc/{}/exe", std::process::id());
    let listed = Command::new(interpreter).arg("--list").arg(ourselves).stdin(Stdio::null()).output()?;
    if !listed.status.success() {
        let words = String::from_utf8_lossy(&listed.stderr).trim().to_owned();
        return Err(io::Error::other(format!("listing this program's libraries with {interpreter}: {words}")));
    }
    Ok(parse(&String::from_utf8_lossy(&listed.stdout)))
}

/// Parses lines such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)`. Lines without
/// an arrow are the vDSO and the linker.
fn parse(listed: &str) -> Vec<(String, String)> {
    let one = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let path = rest.rsplit_once(" (0x").map_or(rest, |(path, _)| path);
        let name = Path::new(name).file_name()?.to_str()?;
        path.starts_with('/').then(|| (name.to_owned(), path.to_owned()))
    };
    listed.lines().filter_map(one).collect()
}

fn file(archive: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(u64::try_from(bytes.len()).map_err(io::Error::other)?);
    archive.append_data(&mut header, path.trim_start_matches('/'), bytes)
}

fn directory(archive: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(mode);
    header.set_size(0);
    archive.append_data(&mut header, path.trim_start_matches('/'), io::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_linker_is_parsed() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f)\n\
            \tlibc.so.6 => /lib/with space/libc.so.6 (0x00007f)\n\
            \tlibgone.so => not found\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = [
            ("libgcc_s.so.1".to_owned(), "/lib/x86_64-linux-gnu/libgcc_s.so.1".to_owned()),
            ("libc.so.6".to_owned(), "/lib/with space/libc.so.6".to_owned()),
        ];
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn the_archive_contains_the_program_and_its_libraries() {
        fn names(archive: impl io::Read) -> Vec<String> {
            let mut archive = tar::Archive::new(archive);
            let entries = archive.entries().unwrap().map(Result::unwrap);
            entries.map(|entry| entry.path().unwrap().display().to_string()).collect()
        }
        let mut whole = fs::File::from(archive("crisp.local/trial:1-2").unwrap());
        io::Seek::rewind(&mut whole).unwrap();
        assert_eq!(names(whole), ["manifest.json", "config.json", "layer.tar"]);
        let names = names(&layer().unwrap()[..]);
        assert!(names.iter().any(|name| name == "crisp"), "{names:?}");
        assert!(names.iter().any(|name| name.contains("libc.so")), "{names:?}");
    }
}
