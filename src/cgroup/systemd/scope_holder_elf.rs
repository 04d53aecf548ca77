//! Assembles the program of a scope holder as an ELF file.
//!
//! The program forks. The parent writes the child's pid, or the negative errno, to stdout, and
//! exits. The child sets its name and reads from stdin: at the end of file it exits, after a byte
//! it waits forever.

pub(super) const NAME: &str = "crisp-keep";

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "x86_64")]
const CODE: [u8; 92] = [
    0xb8, 0x39, 0x00, 0x00, 0x00, //              mov eax, 57 (fork)
    0x0f, 0x05, //                                syscall
    0x85, 0xc0, //                                test eax, eax
    0x74, 0x17, //                                jz child
    0x50, //                                      push rax
    0xbf, 0x01, 0x00, 0x00, 0x00, //              mov edi, 1
    0x48, 0x89, 0xe6, //                          mov rsi, rsp
    0xba, 0x04, 0x00, 0x00, 0x00, //              mov edx, 4
    0xb8, 0x01, 0x00, 0x00, 0x00, //              mov eax, 1 (write)
    0x0f, 0x05, //                                syscall
    0xeb, 0x2f, //                                jmp end
    0xbf, 0x0f, 0x00, 0x00, 0x00, //       child: mov edi, 15 (PR_SET_NAME)
    0x48, 0x8d, 0x35, 0x2e, 0x00, 0x00, 0x00, //  lea rsi, [name]
    0xb8, 0x9d, 0x00, 0x00, 0x00, //              mov eax, 157 (prctl)
    0x0f, 0x05, //                                syscall
    0x31, 0xc0, //                                xor eax, eax (read)
    0x31, 0xff, //                                xor edi, edi
    0x48, 0x89, 0xe6, //                          mov rsi, rsp
    0xba, 0x01, 0x00, 0x00, 0x00, //              mov edx, 1
    0x0f, 0x05, //                                syscall
    0x83, 0xf8, 0x01, //                          cmp eax, 1
    0x75, 0x09, //                                jne end
    0xb8, 0x22, 0x00, 0x00, 0x00, //       wait:  mov eax, 34 (pause)
    0x0f, 0x05, //                                syscall
    0xeb, 0xf7, //                                jmp wait
    0xb8, 0x3c, 0x00, 0x00, 0x00, //       end:   mov eax, 60 (exit)
    0x31, 0xff, //                                xor edi, edi
    0x0f, 0x05, //                                syscall
    0x0f, 0x0b, //                                ud2
];

#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(target_arch = "aarch64")]
const CODE: [u8; 148] = bytes([
    0xd280_0220, //        mov x0, #17 (SIGCHLD)
    0xd280_0001, //        mov x1, #0
    0xd280_0002, //        mov x2, #0
    0xd280_0003, //        mov x3, #0
    0xd280_0004, //        mov x4, #0
    0xd280_1b88, //        mov x8, #220 (clone)
    0xd400_0001, //        svc #0
    0xb400_0100, //        cbz x0, child
    0xb81f_0fe0, //        str w0, [sp, #-16]!
    0xd280_0020, //        mov x0, #1
    0x9100_03e1, //        mov x1, sp
    0xd280_0082, //        mov x2, #4
    0xd280_0808, //        mov x8, #64 (write)
    0xd400_0001, //        svc #0
    0x1400_0013, //        b end
    0xd280_01e0, // child: mov x0, #15 (PR_SET_NAME)
    0x1000_02a1, //        adr x1, name
    0xd280_14e8, //        mov x8, #167 (prctl)
    0xd400_0001, //        svc #0
    0xd280_0000, //        mov x0, #0
    0x9100_03e1, //        mov x1, sp
    0xd280_0022, //        mov x2, #1
    0xd280_07e8, //        mov x8, #63 (read)
    0xd400_0001, //        svc #0
    0xf100_041f, //        cmp x0, #1
    0x5400_0101, //        b.ne end
    0xd280_0000, // wait:  mov x0, #0
    0xd280_0001, //        mov x1, #0
    0xd280_0002, //        mov x2, #0
    0xd280_0003, //        mov x3, #0
    0xd280_0928, //        mov x8, #73 (ppoll, of nothing: there is no pause)
    0xd400_0001, //        svc #0
    0x17ff_fffa, //        b wait
    0xd280_0000, // end:   mov x0, #0
    0xd280_0ba8, //        mov x8, #93 (exit)
    0xd400_0001, //        svc #0
    0x0000_0000, //        udf #0
]);

#[cfg(target_arch = "aarch64")]
const fn bytes(words: [u32; 37]) -> [u8; 148] {
    let mut bytes = [0; 148];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = words[at / 4].to_le_bytes()[at % 4];
        at += 1;
    }
    bytes
}

/// The address at which the kernel loads the file.
const BASE: u64 = 0x0040_0000;
/// The largest page size; addresses must be multiples of it.
const ALIGNMENT: u64 = 0x1_0000;
/// The ELF header and two program headers.
const HEADERS: [u16; 2] = [64, 56];

/// The whole file as one segment, and a stack without execution.
pub(super) fn program() -> Vec<u8> {
    let mut content = CODE.to_vec();
    content.extend_from_slice(NAME.as_bytes());
    content.push(0);
    let begin = u64::from(HEADERS[0]) + 2 * u64::from(HEADERS[1]);
    let size = begin + u64::try_from(content.len()).unwrap_or_default();

    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // An executable for this machine, ELF version 1.
    file.extend(2_u16.to_le_bytes());
    file.extend(MACHINE.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    // Entry point; offsets of program headers and (none) section headers; flags.
    file.extend((BASE + begin).to_le_bytes());
    file.extend(u64::from(HEADERS[0]).to_le_bytes());
    file.extend(0_u64.to_le_bytes());
    file.extend(0_u32.to_le_bytes());
    // Sizes and numbers of headers.
    for number in [HEADERS[0], HEADERS[1], 2, 0, 0, 0] {
        file.extend(number.to_le_bytes());
    }
    const LOAD: u32 = 1;
    const STACK: u32 = 0x6474_e551;
    segment(&mut file, LOAD, READ | RUN, [0, BASE, BASE, size, size, ALIGNMENT]);
    segment(&mut file, STACK, READ | WRITE, [0, 0, 0, 0, 0, 16]);
    file.extend(content);
    file
}

const RUN: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 4;

/// A program header: offset, two addresses, two sizes and alignment at the end.
fn segment(file: &mut Vec<u8>, kind: u32, flags: u32, rest: [u64; 6]) {
    file.extend(kind.to_le_bytes());
    file.extend(flags.to_le_bytes());
    file.extend(rest.iter().flat_map(|number| number.to_le_bytes()));
}
