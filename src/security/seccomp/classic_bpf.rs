//! Generates classic BPF backward, from the last instruction to the first.
//!
//! Jumps in a filter only go forward, so the target of each jump is already written. Conditional jumps
//! reach 255 instructions; for a farther target an unconditional jump is inserted.

use super::profile::Action;

/// An instruction that is already written, as its distance from the program's end.
pub(super) type Label = u32;

/// The maximum distance of a conditional jump: 255 minus the instructions that may be inserted before it.
const REACH: u32 = 250;

// The instructions in use, from linux/bpf_common.h.
const LOAD: u16 = 0x20; // LD | W | ABS
const AND: u16 = 0x54; // ALU | AND | K
const GO: u16 = 0x05; // JMP | JA
const RETURN: u16 = 0x06; // RET | K

/// The condition of a jump on the loaded word.
#[derive(Debug, Clone, Copy)]
pub(super) enum If {
    Equal = 0x15,
    Greater = 0x25,
    AtLeast = 0x35,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    value: u32,
}

/// A program whose beginning is not written yet.
#[derive(Debug, Default)]
pub(super) struct Program {
    backward: Vec<Instruction>,
    len: u32,
    returns: Vec<(Action, Label)>,
}

impl Program {
    fn push(&mut self, code: u16, yes: u8, no: u8, value: u32) -> Label {
        self.backward.push(Instruction { code, yes, no, value });
        self.len += 1;
        self.len
    }

    /// Returns with the action.
    pub(super) fn end(&mut self, action: Action) -> Label {
        if let Some((_, label)) = self.returns.iter().rev().find(|(of, _)| *of == action)
            && self.len - label <= REACH
        {
            return *label;
        }
        let label = self.push(RETURN, 0, 0, action.answer());
        self.returns.push((action, label));
        label
    }

    /// Loads a word of the kernel's `seccomp_data`, then continues with the instruction written last.
    pub(super) fn load(&mut self, offset: u32) -> Label {
        self.push(LOAD, 0, 0, offset)
    }

    /// Clears the bits outside of the mask, then continues with the instruction written last.
    pub(super) fn mask(&mut self, mask: u32) -> Label {
        self.push(AND, 0, 0, mask)
    }

    /// Jumps to `yes` or `no`.
    pub(super) fn branch(&mut self, asked: If, value: u32, yes: Label, no: Label) -> Label {
        let (yes, no) = (self.near(yes), self.near(no));
        let skip =
            |label| u8::try_from(self.len - label).unwrap_or_else(|_| unreachable!("`near` limits the distance"));
        self.push(asked as u16, skip(yes), skip(no), value)
    }

    /// Adds a jump to `label` unless it is the instruction written last.
    pub(super) fn go(&mut self, label: Label) -> Label {
        if label == self.len { label } else { self.push(GO, 0, 0, self.len - label) }
    }

    fn near(&mut self, label: Label) -> Label {
        if self.len - label > REACH { self.go(label) } else { label }
    }

    /// Returns the instructions in execution order, in the kernel's layout.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let encode = |i: &Instruction| {
            let [a, b] = i.code.to_ne_bytes();
            let [e, f, g, h] = i.value.to_ne_bytes();
            [a, b, i.yes, i.no, e, f, g, h]
        };
        self.backward.iter().rev().flat_map(encode).collect()
    }
}
