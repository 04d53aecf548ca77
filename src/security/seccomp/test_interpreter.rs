//! Runs filters in tests; panics at instructions that the compiler does not generate.

use sys::seccomp::Instruction;

use super::syscalls::Abi;

/// The fields of the kernel's `seccomp_data` for a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) architecture: u32,
    pub(super) number: u32,
    pub(super) arguments: [u64; 6],
}

impl Call {
    pub(super) fn new(abi: Abi, number: u32, arguments: [u64; 6]) -> Self {
        Self { architecture: abi.audit(), number, arguments }
    }

    fn data(&self) -> Vec<u8> {
        let mut data = [self.number.to_le_bytes(), self.architecture.to_le_bytes(), [0; 4], [0; 4]].concat();
        data.extend(self.arguments.iter().flat_map(|argument| argument.to_le_bytes()));
        data
    }
}

/// Returns the filter's return value and the number of instructions executed.
pub(super) fn run(program: &[Instruction], call: &Call) -> (u32, usize) {
    let data = call.data();
    let (mut at, mut loaded, mut steps) = (0usize, 0u32, 0);
    loop {
        let instruction = program[at];
        (at, steps) = (at + 1, steps + 1);
        let value = instruction.k;
        let skip = |yes: bool| usize::from(if yes { instruction.jt } else { instruction.jf });
        match instruction.code {
            0x20 => {
                let word = &data[usize::try_from(value).unwrap()..][..4];
                loaded = u32::from_le_bytes(word.try_into().unwrap());
            }
            0x54 => loaded &= value,
            0x05 => at += usize::try_from(value).unwrap(),
            0x15 => at += skip(loaded == value),
            0x25 => at += skip(loaded > value),
            0x35 => at += skip(loaded >= value),
            0x06 => return (value, steps),
            other => panic!("instruction {other:#x} is not used here"),
        }
    }
}
