//! The seccomp filter of a container, and whether it allows the last system calls of crisp.
//!
//! A process of a container becomes visible to others in its PID namespace when it is forked. So it
//! is forked with the filter: its parent loads it and forks. A filter may refuse that fork, or
//! calls of the new process before its program runs. Then a few instructions are loaded in front of
//! the filter that allow those calls if they have a random token in an argument that the kernel
//! ignores. The program never learns the token.

use std::io::{self, Read as _};

use sys::seccomp::Instruction;
use sys::sibling::{CallToken, ConfinedCall};

const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ACTION: u32 = 0xffff_0000;

/// Offsets of the data that a filter reads.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
const TOKEN_ARGUMENT: u32 = 5;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// A filter that is loaded before `calls` are made.
#[derive(Debug, Default)]
pub(crate) struct SeccompFilter {
    program: Option<Vec<Instruction>>,
    pub(crate) token: CallToken,
}

impl SeccompFilter {
    /// `bytes` is the compiled filter of the container, if it has one.
    pub(crate) fn prepare(bytes: Option<&[u8]>, calls: &[ConfinedCall]) -> io::Result<Self> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        let program = sys::seccomp::from_bytes(bytes)?;
        let refused: Vec<ConfinedCall> = calls.iter().copied().filter(|call| !passes(&program, *call)).collect();
        if refused.is_empty() {
            return Ok(Self { program: Some(program), token: CallToken::default() });
        }
        let mut random = [0; 8];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
        let token = u64::from_ne_bytes(random);
        let mut before: Vec<Instruction> = refused.into_iter().flat_map(|call| pass(call, token)).collect();
        before.extend(program);
        Ok(Self { program: Some(before), token: CallToken(token) })
    }

    pub(crate) fn load(&self) -> io::Result<()> {
        self.program.as_deref().map_or(Ok(()), sys::seccomp::load)
    }
}

/// Returns instructions that allow `call` with `token`, and continue with the filter for all other
/// calls.
fn pass(call: ConfinedCall, token: u64) -> Vec<Instruction> {
    let (number, argument) = call.signature();
    let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default();
    let word = |index: u32, high: u32| ARGUMENTS + 8 * index + 4 * high;
    let mut tests = vec![
        (NUMBER, u32::try_from(number).unwrap_or(u32::MAX)),
        (ARCHITECTURE, NATIVE),
        (word(TOKEN_ARGUMENT, 0), low(token)),
        (word(TOKEN_ARGUMENT, 1), low(token >> 32)),
    ];
    if let Some((index, value)) = argument {
        tests.push((word(u32::try_from(index).unwrap_or(0), 0), value));
    }
    let total = tests.len() * 2 + 1;
    let mut program = Vec::with_capacity(total);
    for (offset, value) in tests {
        program.push(Instruction { code: LOAD, jt: 0, jf: 0, k: offset });
        // The instruction after the last one, counted from the next one.
        let out = u8::try_from(total - program.len() - 1).unwrap_or(u8::MAX);
        program.push(Instruction { code: JUMP_EQUAL, jt: 0, jf: out, k: value });
    }
    program.push(Instruction { code: RETURN, jt: 0, jf: 0, k: ALLOW });
    program
}

/// Returns whether `program` allows `call` without a token.
fn passes(program: &[Instruction], call: ConfinedCall) -> bool {
    let (number, argument) = call.signature();
    let mut data = [0u32; 16];
    data[0] = u32::try_from(number).unwrap_or(u32::MAX);
    data[1] = NATIVE;
    if let Some((index, value)) = argument
        && let Some(word) = data.get_mut(4 + 2 * index)
    {
        *word = value;
    }
    matches!(evaluate(program, &data).map(|answer| answer & ACTION), Some(ALLOW | LOG))
}

/// Returns the result of a filter for `data`, its 64 bytes as words. `None` for an instruction that
/// no kernel filter has.
fn evaluate(program: &[Instruction], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0usize;
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        at += 1;
        let cell = usize::try_from(k).ok()?;
        let operand = if code & 0x08 != 0 { x } else { k };
        match code {
            LOAD => a = *data.get(cell / 4).filter(|_| k % 4 == 0)?,
            0x80 => a = 64,
            0x81 => x = 64,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *memory.get(cell)?,
            0x61 => x = *memory.get(cell)?,
            0x02 => *memory.get_mut(cell)? = a,
            0x03 => *memory.get_mut(cell)? = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.checked_shl(operand)?,
            0x74 | 0x7c => a = a.checked_shr(operand)?,
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            0x05 => at = at.checked_add(cell)?,
            JUMP_EQUAL | 0x1d => at += usize::from(if a == operand { jt } else { jf }),
            0x25 | 0x2d => at += usize::from(if a > operand { jt } else { jf }),
            0x35 | 0x3d => at += usize::from(if a >= operand { jt } else { jf }),
            0x45 | 0x4d => at += usize::from(if a & operand != 0 { jt } else { jf }),
            RETURN => return Some(k),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERRNO: u32 = 0x0005_0001;
    const CALLS: [ConfinedCall; 5] = [
        ConfinedCall::Fork,
        ConfinedCall::NewSession,
        ConfinedCall::BecomeSubreaper,
        ConfinedCall::TakeTerminal,
        ConfinedCall::Read,
    ];

    fn bytes(program: &[(u16, u8, u8, u32)]) -> Vec<u8> {
        let one = |(code, jt, jf, k): &(u16, u8, u8, u32)| {
            [&code.to_ne_bytes()[..], &[*jt, *jf], &k.to_ne_bytes()[..]].concat()
        };
        program.iter().flat_map(one).collect()
    }

    fn number(call: ConfinedCall) -> u32 {
        u32::try_from(call.signature().0).unwrap()
    }

    /// Returns the result of the filter for a call with its own argument, with another one, and
    /// with a token.
    fn answer(filter: &SeccompFilter, call: ConfinedCall, argument: Option<u32>, token: u64) -> u32 {
        let mut data = [0u32; 16];
        data[0] = number(call);
        data[1] = NATIVE;
        if let Some((index, value)) = call.signature().1 {
            data[4 + 2 * index] = argument.unwrap_or(value);
        }
        data[14] = u32::try_from(token & 0xffff_ffff).unwrap();
        data[15] = u32::try_from(token >> 32).unwrap();
        evaluate(filter.program.as_ref().unwrap(), &data).unwrap()
    }

    #[test]
    fn a_filter_that_allows_all_calls_is_loaded_unchanged() {
        let program = bytes(&[(RETURN, 0, 0, ALLOW)]);
        let filter = SeccompFilter::prepare(Some(&program), &CALLS).unwrap();
        assert_eq!((filter.program.unwrap().len(), filter.token), (1, CallToken(0)));
        assert!(SeccompFilter::prepare(None, &CALLS).unwrap().program.is_none());
    }

    #[test]
    fn a_filter_that_refuses_calls_allows_them_with_the_token_only() {
        // Allows one call, and refuses all others.
        let allowed = number(ConfinedCall::Read);
        let program =
            bytes(&[(LOAD, 0, 0, 0), (JUMP_EQUAL, 0, 1, allowed), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO)]);
        let filter = SeccompFilter::prepare(Some(&program), &CALLS).unwrap();
        let CallToken(token) = filter.token;
        assert_ne!(token, 0);
        for call in CALLS {
            assert_eq!(answer(&filter, call, None, token), ALLOW, "{call:?}");
            let without = if call == ConfinedCall::Read { ALLOW } else { ERRNO };
            for wrong in [0, token ^ 1, token ^ (1 << 63)] {
                assert_eq!(answer(&filter, call, None, wrong), without, "{call:?}");
            }
        }
        // A token is good for these calls and nothing else that has their number.
        for call in [ConfinedCall::Fork, ConfinedCall::BecomeSubreaper, ConfinedCall::TakeTerminal] {
            assert_eq!(answer(&filter, call, Some(7), token), ERRNO, "{call:?}");
        }
    }

    #[test]
    fn an_invalid_filter_allows_nothing() {
        let nonsense = [Instruction { code: 0xffff, jt: 0, jf: 0, k: 0 }];
        assert!(!passes(&nonsense, ConfinedCall::Read));
        let endless = [Instruction { code: 0x05, jt: 0, jf: 0, k: 9 }];
        assert!(!passes(&endless, ConfinedCall::Read));
    }
}
