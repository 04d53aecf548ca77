//! Writing classic BPF, from its end to its beginning.
//!
//! Jumps in a filter only go forward, so whoever writes backward knows the target of each jump before the jump itself.
//! Conditional jumps reach 255 instructions; where the target is farther off an unconditional one is put in between.

use super::profile::Action;

/// An instruction already written, as its distance from the program's end.
pub(super) type Label = u32;

/// How far a conditional jump may aim: one less than 255 for each instruction that may still come in between.
const REACH: u32 = 250;

// The instructions in use, from linux/bpf_common.h.
const LOAD: u16 = 0x20; // LD | W | ABS
const AND: u16 = 0x54; // ALU | AND | K
const GO: u16 = 0x05; // JMP | JA
const RETURN: u16 = 0x06; // RET | K

/// What a conditional jump asks about the loaded word.
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

/// A program whose beginning is still to be written.
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

    /// Ends with the action.
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

    /// Loads a word of the kernel's `seccomp_data`, then goes on with what was written last.
    pub(super) fn load(&mut self, offset: u32) -> Label {
        self.push(LOAD, 0, 0, offset)
    }

    /// Clears the bits outside of the mask, then goes on with what was written last.
    pub(super) fn mask(&mut self, mask: u32) -> Label {
        self.push(AND, 0, 0, mask)
    }

    /// Goes to `yes` or `no`.
    pub(super) fn branch(&mut self, asked: If, value: u32, yes: Label, no: Label) -> Label {
        let (yes, no) = (self.near(yes), self.near(no));
        let skip = |label| u8::try_from(self.len - label).unwrap_or_else(|_| unreachable!("the target was made near"));
        self.push(asked as u16, skip(yes), skip(no), value)
    }

    /// Makes sure that the instruction written last leads to `label`.
    pub(super) fn go(&mut self, label: Label) -> Label {
        if label == self.len { label } else { self.push(GO, 0, 0, self.len - label) }
    }

    fn near(&mut self, label: Label) -> Label {
        if self.len - label > REACH { self.go(label) } else { label }
    }

    /// The instructions from the first to the last, as the kernel lays them out.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let encode = |i: &Instruction| {
            let [a, b] = i.code.to_ne_bytes();
            let [e, f, g, h] = i.value.to_ne_bytes();
            [a, b, i.yes, i.no, e, f, g, h]
        };
        self.backward.iter().rev().flat_map(encode).collect()
    }
}
