//! Generates the eBPF program that decides about access to device nodes on cgroup v2.
//!
//! The kernel runs it at each open and mknod with three numbers: kind and access in one, major,
//! minor. It returns 1 to allow and 0 to deny.

use sys::bpf::Instruction;

use crate::devices::{Access, DeviceKind, DeviceRule, Policy, Verdict};

// Registers: 0 is the result; 1 points to the input at first and is scratch afterwards; the program
// uses the others.
const ANSWER: u8 = 0;
const SCRATCH: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

/// The used instructions: 32-bit forms only, so that numbers are compared whole and unsigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    /// Loads the input's 32-bit word at a byte offset.
    Load {
        to: u8,
        offset: i16,
    },
    Set {
        to: u8,
        value: u32,
    },
    Copy {
        to: u8,
        from: u8,
    },
    And {
        to: u8,
        value: u32,
    },
    ShiftRight {
        to: u8,
        bits: u32,
    },
    /// Skips so many instructions if the register differs from the value.
    SkipUnless {
        register: u8,
        value: u32,
        skip: i16,
    },
    /// Skips so many instructions if the registers differ.
    SkipUnlessSame {
        a: u8,
        b: u8,
        skip: i16,
    },
    /// Skips so many instructions if the register has the value.
    SkipIf {
        register: u8,
        value: u32,
        skip: i16,
    },
    Exit,
}

impl Op {
    /// Lets a conditional jump skip so many instructions.
    fn aim(&mut self, distance: i16) {
        match self {
            Self::SkipUnless { skip, .. } | Self::SkipUnlessSame { skip, .. } | Self::SkipIf { skip, .. } => {
                *skip = distance;
            }
            Self::Load { .. }
            | Self::Set { .. }
            | Self::Copy { .. }
            | Self::And { .. }
            | Self::ShiftRight { .. }
            | Self::Exit => {}
        }
    }

    /// See the kernel's Documentation/bpf/standardization/instruction-set.rst.
    fn encode(self) -> Instruction {
        let op = |code, to, from, offset, value: u32| Instruction::new(code, to, from, offset, value.cast_signed());
        match self {
            Self::Load { to, offset } => op(0x61, to, SCRATCH, offset, 0),
            Self::Set { to, value } => op(0xb4, to, 0, 0, value),
            Self::Copy { to, from } => op(0xbc, to, from, 0, 0),
            Self::And { to, value } => op(0x54, to, 0, 0, value),
            Self::ShiftRight { to, bits } => op(0x74, to, 0, 0, bits),
            Self::SkipUnless { register, value, skip } => op(0x56, register, 0, skip, value),
            Self::SkipUnlessSame { a, b, skip } => op(0x5e, a, b, skip, 0),
            Self::SkipIf { register, value, skip } => op(0x16, register, 0, skip, value),
            Self::Exit => op(0x95, 0, 0, 0, 0),
        }
    }
}

/// The whole program for a policy.
pub(crate) fn assemble(policy: &Policy) -> Vec<Instruction> {
    ops(policy).into_iter().map(Op::encode).collect()
}

fn ops(policy: &Policy) -> Vec<Op> {
    let mut ops = vec![
        Op::Load { to: KIND, offset: 0 },
        Op::Copy { to: ACCESS, from: KIND },
        Op::And { to: KIND, value: 0xffff },
        Op::ShiftRight { to: ACCESS, bits: 16 },
        Op::Load { to: MAJOR, offset: 4 },
        Op::Load { to: MINOR, offset: 8 },
    ];
    policy.exceptions.iter().for_each(|exception| ops.extend(block(exception)));
    ops.extend([Op::Set { to: ANSWER, value: answer(policy.otherwise) }, Op::Exit]);
    ops
}

/// Returns if the exception applies; otherwise execution continues after it.
fn block(exception: &DeviceRule) -> Vec<Op> {
    let unless = |register, value| Op::SkipUnless { register, value, skip: 0 };
    let mut block = Vec::new();
    match exception.kind {
        DeviceKind::All => {}
        DeviceKind::Block => block.push(unless(KIND, 1)),
        DeviceKind::Char => block.push(unless(KIND, 2)),
    }
    block.extend(exception.major.map(|major| unless(MAJOR, major)));
    block.extend(exception.minor.map(|minor| unless(MINOR, minor)));
    if exception.access != Access::ALL {
        block.push(Op::Copy { to: SCRATCH, from: ACCESS });
        block.push(Op::And { to: SCRATCH, value: u32::from(exception.access.bits()) });
        block.push(match exception.verdict {
            // Allowed only if the rule allows all requested accesses.
            Verdict::Allow => Op::SkipUnlessSame { a: SCRATCH, b: ACCESS, skip: 0 },
            // Denied if the rule denies one of the requested accesses.
            Verdict::Deny => Op::SkipIf { register: SCRATCH, value: 0, skip: 0 },
        });
    }
    block.extend([Op::Set { to: ANSWER, value: answer(exception.verdict) }, Op::Exit]);
    for (op, behind) in block.iter_mut().rev().zip(0..) {
        op.aim(behind);
    }
    block
}

fn answer(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Allow => 1,
        Verdict::Deny => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{allow_all, default_rules};

    const BLOCK: u32 = 1;
    const CHAR: u32 = 2;

    /// Interprets a program as the kernel does.
    fn run(ops: &[Op], kind: u32, access: Access, major: u32, minor: u32) -> bool {
        let input = [u32::from(access.bits()) << 16 | kind, major, minor];
        let mut registers = [0_u32; 11];
        let mut at = 0_usize;
        let mut input_lost = false;
        loop {
            let jump = |skip: i16, taken: bool| if taken { usize::try_from(skip).unwrap() } else { 0 };
            let r = |register: u8| registers[usize::from(register)];
            let (write, skip) = match ops[at] {
                Op::Load { to, offset } => {
                    assert!(!input_lost, "the input pointer was overwritten");
                    (Some((to, input[usize::try_from(offset).unwrap() / 4])), 0)
                }
                Op::Set { to, value } => (Some((to, value)), 0),
                Op::Copy { to, from } => (Some((to, r(from))), 0),
                Op::And { to, value } => (Some((to, r(to) & value)), 0),
                Op::ShiftRight { to, bits } => (Some((to, r(to) >> bits)), 0),
                Op::SkipUnless { register, value, skip } => (None, jump(skip, r(register) != value)),
                Op::SkipUnlessSame { a, b, skip } => (None, jump(skip, r(a) != r(b))),
                Op::SkipIf { register, value, skip } => (None, jump(skip, r(register) == value)),
                Op::Exit => return r(ANSWER) == 1,
            };
            if let Some((to, value)) = write {
                registers[usize::from(to)] = value;
                input_lost |= to == SCRATCH;
            }
            at += 1 + skip;
        }
    }

    fn program(rules: &[DeviceRule]) -> Vec<Op> {
        ops(&Policy::new(rules).unwrap())
    }

    const RW: Access = Access::READ.with(Access::WRITE);

    #[test]
    fn default_rules_allow_only_the_standard_devices() {
        let program = program(&default_rules());
        for (major, minor) in [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2), (136, 0), (136, 77)] {
            assert!(run(&program, CHAR, RW, major, minor), "c {major}:{minor}");
            assert!(!run(&program, BLOCK, RW, major, minor), "b {major}:{minor}");
        }
        for (major, minor) in [(1, 1), (1, 2), (1, 11), (10, 200), (10, 229), (5, 3), (0, 0)] {
            assert!(!run(&program, CHAR, Access::READ, major, minor), "c {major}:{minor}");
        }
        assert!(!run(&program, BLOCK, Access::READ, 8, 0));
    }

    #[test]
    fn any_node_can_be_created_but_not_opened() {
        let program = program(&default_rules());
        assert!(run(&program, BLOCK, Access::MKNOD, 8, 0));
        assert!(run(&program, CHAR, Access::MKNOD, 1, 1));
        assert!(!run(&program, BLOCK, Access::MKNOD.with(Access::READ), 8, 0));
    }

    #[test]
    fn a_rule_for_reading_does_not_allow_writing() {
        let program = program(&[DeviceRule::allow(DeviceKind::Block, Some(8), None, Access::READ)]);
        assert!(run(&program, BLOCK, Access::READ, 8, 5));
        assert!(!run(&program, BLOCK, RW, 8, 5));
        assert!(!run(&program, BLOCK, Access::READ, 9, 5));
    }

    #[test]
    fn a_denial_applies_to_any_overlapping_access() {
        let mut rules = allow_all();
        rules.push(DeviceRule {
            verdict: Verdict::Deny,
            ..DeviceRule::allow(DeviceKind::Block, Some(8), Some(0), Access::WRITE)
        });
        let program = program(&rules);
        assert!(run(&program, BLOCK, Access::READ, 8, 0));
        assert!(!run(&program, BLOCK, RW, 8, 0));
        assert!(run(&program, BLOCK, RW, 8, 1));
        assert!(run(&program, CHAR, RW, 8, 0));
    }

    #[test]
    fn no_rules_deny_everything() {
        let program = program(&[]);
        assert!(!run(&program, CHAR, Access::READ, 1, 3));
    }

    #[test]
    fn instructions_have_the_kernels_codes() {
        let jump = Op::SkipUnless { register: MAJOR, value: u32::MAX, skip: 3 }.encode();
        assert_eq!(jump, Instruction::new(0x56, 4, 0, 3, -1));
        assert_eq!(Op::Exit.encode(), Instruction::new(0x95, 0, 0, 0, 0));
        assert_eq!(Op::Load { to: 2, offset: 8 }.encode(), Instruction::new(0x61, 2, 1, 8, 0));
    }
}
