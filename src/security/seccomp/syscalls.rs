//! The numbers of system calls by ABI.

use std::collections::HashMap;
use std::sync::LazyLock;

/// A system call ABI of a supported architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Abi {
    X86_64,
    I386,
    Aarch64,
    Arm,
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("seccomp filters are supported on x86_64 and aarch64 only");

impl Abi {
    pub(super) const NATIVE: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    /// Returns the 32-bit ABI of the same architecture; itself if it is one.
    pub(super) fn narrow(self) -> Self {
        match self {
            Self::X86_64 | Self::I386 => Self::I386,
            Self::Aarch64 | Self::Arm => Self::Arm,
        }
    }

    /// Returns whether arguments have 64 bits.
    pub(super) fn is_wide(self) -> bool {
        self != self.narrow()
    }

    /// Returns the kernel's value in `seccomp_data`: `AUDIT_ARCH_*` of linux/audit.h.
    pub(super) fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::I386 => 0x4000_0003,
            Self::Aarch64 => 0xc000_00b7,
            Self::Arm => 0x4000_0028,
        }
    }

    /// Returns the name in a profile's list of architectures.
    pub(super) fn listed_as(self) -> &'static str {
        match self {
            Self::X86_64 => "SCMP_ARCH_X86_64",
            Self::I386 => "SCMP_ARCH_X86",
            Self::Aarch64 => "SCMP_ARCH_AARCH64",
            Self::Arm => "SCMP_ARCH_ARM",
        }
    }

    /// Returns the name of the architecture in conditions of profiles.
    pub(super) fn machine(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::I386 => "x86",
            Self::Aarch64 => "arm64",
            Self::Arm => "arm",
        }
    }

    fn column(self) -> usize {
        match self {
            Self::X86_64 => 0,
            Self::I386 => 1,
            Self::Aarch64 => 2,
            Self::Arm => 3,
        }
    }
}

type Numbers = [Option<u32>; 4];

static TABLE: LazyLock<HashMap<&'static str, Numbers>> = LazyLock::new(|| {
    let rows = include_str!("syscalls.txt").lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let mut fields = row.split(' ');
        let name = fields.next()?;
        Some((name, std::array::from_fn(|_| fields.next().and_then(|number| number.parse().ok()))))
    })
    .collect()
});

/// Returns the number of a call, or `None` if the ABI does not have it.
pub(super) fn number(abi: Abi, name: &str) -> Option<u32> {
    TABLE.get(name).and_then(|numbers| numbers[abi.column()])
}

/// Returns whether any ABI has a call of this name.
pub(super) fn is_known(name: &str) -> bool {
    TABLE.contains_key(name)
}

/// Returns the multiplexing i386 call for `name`, with the number for its first argument.
///
/// i386 had socketcall and ipc before separate calls for sockets and System V IPC: linux/net.h and
/// linux/ipc.h.
pub(super) fn multiplexed(abi: Abi, name: &str) -> Option<(&'static str, u32)> {
    if abi != Abi::I386 {
        return None;
    }
    let (by, number) = match name {
        "socket" => ("socketcall", 1),
        "bind" => ("socketcall", 2),
        "connect" => ("socketcall", 3),
        "listen" => ("socketcall", 4),
        "accept" => ("socketcall", 5),
        "getsockname" => ("socketcall", 6),
        "getpeername" => ("socketcall", 7),
        "socketpair" => ("socketcall", 8),
        "send" => ("socketcall", 9),
        "recv" => ("socketcall", 10),
        "sendto" => ("socketcall", 11),
        "recvfrom" => ("socketcall", 12),
        "shutdown" => ("socketcall", 13),
        "setsockopt" => ("socketcall", 14),
        "getsockopt" => ("socketcall", 15),
        "sendmsg" => ("socketcall", 16),
        "recvmsg" => ("socketcall", 17),
        "accept4" => ("socketcall", 18),
        "recvmmsg" => ("socketcall", 19),
        "sendmmsg" => ("socketcall", 20),
        "semop" => ("ipc", 1),
        "semget" => ("ipc", 2),
        "semctl" => ("ipc", 3),
        "semtimedop" => ("ipc", 4),
        "msgsnd" => ("ipc", 11),
        "msgrcv" => ("ipc", 12),
        "msgget" => ("ipc", 13),
        "msgctl" => ("ipc", 14),
        "shmat" => ("ipc", 21),
        "shmdt" => ("ipc", 22),
        "shmget" => ("ipc", 23),
        "shmctl" => ("ipc", 24),
        _ => return None,
    };
    Some((by, number))
}

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.keys().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_row_of_the_table_is_complete() {
        let text = include_str!("syscalls.txt");
        let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(rows.len(), TABLE.len(), "a name is duplicated");
        for row in rows {
            let numbers: Vec<&str> = row.split(' ').skip(1).collect();
            assert_eq!(numbers.len(), 4, "{row}");
            assert!(numbers.iter().all(|n| *n == "-" || n.parse::<u32>().is_ok()), "{row}");
            assert!(numbers.iter().any(|n| *n != "-"), "{row}");
        }
    }

    #[test]
    fn every_number_has_one_name_except_one_on_arm() {
        for abi in [Abi::X86_64, Abi::I386, Abi::Aarch64, Abi::Arm] {
            let mut seen = HashSet::new();
            let twice: HashSet<u32> = names().filter_map(|n| number(abi, n)).filter(|n| !seen.insert(*n)).collect();
            let allowed = if abi == Abi::Arm { HashSet::from([341]) } else { HashSet::new() };
            assert_eq!(twice, allowed, "{abi:?}");
        }
    }

    #[test]
    fn calls_have_the_numbers_of_the_kernel() {
        let cases = [
            ("read", [Some(0), Some(3), Some(63), Some(3)]),
            ("execve", [Some(59), Some(11), Some(221), Some(11)]),
            ("mount", [Some(165), Some(21), Some(40), Some(21)]),
            ("fork", [Some(57), Some(2), None, Some(2)]),
            ("socketcall", [None, Some(102), None, None]),
            ("clone3", [Some(435); 4]),
        ];
        for (name, numbers) in cases {
            let found = [Abi::X86_64, Abi::I386, Abi::Aarch64, Abi::Arm].map(|abi| number(abi, name));
            assert_eq!(found, numbers, "{name}");
        }
    }
}
