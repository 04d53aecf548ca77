use proptest::prelude::*;

use super::*;

/// The three representations of a literal field: with indexing, without indexing, never indexed.
const WAYS: [u8; 3] = [0x40, 0x00, 0x10];

/// The first and the last printable character of each code length in Huffman code.
const ENDS: &str = "0t u:z&Z!?'|#>$~^}<{";

/// Returns the Huffman code of those and a few other characters (RFC 7541, appendix B).
fn code(character: char) -> &'static str {
    match character {
        '0' => "00000",
        '2' => "00010",
        'a' => "00011",
        'c' => "00100",
        'i' => "00110",
        'o' => "00111",
        's' => "01000",
        't' => "01001",
        ' ' => "010100",
        '%' => "010101",
        '-' => "010110",
        '.' => "010111",
        '/' => "011000",
        'h' => "100111",
        'n' => "101010",
        'p' => "101011",
        'r' => "101100",
        'u' => "101101",
        ':' => "1011100",
        'F' => "1100001",
        'k' => "1110101",
        'y' => "1111010",
        'z' => "1111011",
        '&' => "11111000",
        'Z' => "11111101",
        '!' => "1111111000",
        '?' => "1111111100",
        '\'' => "11111111010",
        '|' => "11111111100",
        '#' => "111111111010",
        '>' => "111111111011",
        '$' => "1111111111001",
        '~' => "1111111111101",
        '^' => "11111111111100",
        '}' => "11111111111101",
        '<' => "111111111111100",
        '{' => "111111111111110",
        '\\' => "1111111111111110000",
        other => panic!("{other:?} has no code here"),
    }
}

/// Encodes an integer after the upper bits of its first byte.
fn integer(upper: u8, most: usize, number: usize) -> Vec<u8> {
    let byte = |n: usize| u8::try_from(n).unwrap();
    if number < most {
        return vec![upper | byte(number)];
    }
    let mut bytes = vec![upper | byte(most)];
    let mut rest = number - most;
    while rest >= 0x80 {
        bytes.push(0x80 | byte(rest % 0x80));
        rest /= 0x80;
    }
    bytes.push(byte(rest));
    bytes
}

fn text(text: &str, huffman: bool) -> Vec<u8> {
    if !huffman {
        return [integer(0, 0x7f, text.len()), text.as_bytes().to_vec()].concat();
    }
    let mut bits: String = text.chars().map(code).collect();
    bits.push_str(&"1".repeat(bits.len().next_multiple_of(8) - bits.len()));
    let bytes =
        bits.as_bytes().chunks(8).map(|bits| u8::from_str_radix(std::str::from_utf8(bits).unwrap(), 2).unwrap());
    [integer(0x80, 0x7f, bits.len() / 8), bytes.collect()].concat()
}

/// A field as a client may send it.
#[derive(Debug, Clone)]
enum Field {
    FromTable(usize),
    TableSize(usize),
    Known { way: u8, name: usize, value: String, huffman: bool },
    Spelled { way: u8, name: String, name_huffman: bool, value: String, huffman: bool },
}

impl Field {
    fn written(&self) -> Vec<u8> {
        match self {
            Self::FromTable(index) => integer(0x80, 0x7f, *index),
            Self::TableSize(size) => integer(0x20, 0x1f, *size),
            Self::Known { way, name, value, huffman } => {
                let most = if *way == 0x40 { 0x3f } else { 0x0f };
                [integer(*way, most, *name), text(value, *huffman)].concat()
            }
            Self::Spelled { way, name, name_huffman, value, huffman } => {
                [vec![*way], text(name, *name_huffman), text(value, *huffman)].concat()
            }
        }
    }

    fn is_authority(&self) -> bool {
        match self {
            Self::FromTable(_) | Self::TableSize(_) => false,
            Self::Known { name, .. } => *name == 1,
            Self::Spelled { name, .. } => name == ":authority",
        }
    }

    /// Returns the same field with a rewritten value, if it is `:authority`.
    fn mended(&self) -> Self {
        let mut field = self.clone();
        if let (true, Self::Known { value, .. } | Self::Spelled { value, .. }) = (self.is_authority(), &mut field) {
            *value = value.replace(['%', '/'], "-");
        }
        field
    }
}

fn mended(block: &[u8]) -> Vec<u8> {
    let mut block = block.to_vec();
    rewrite_authority(&mut block);
    block
}

/// Returns every representation of `:authority` with this value.
fn authorities(value: &str) -> impl Iterator<Item = Field> {
    let ways = WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]);
    ways.flat_map(|(way, huffman)| {
        let spelled = |name_huffman| Field::Spelled {
            way,
            name: ":authority".to_owned(),
            name_huffman,
            value: value.to_owned(),
            huffman,
        };
        [Field::Known { way, name: 1, value: value.to_owned(), huffman }, spelled(false), spelled(true)]
    })
}

#[test]
fn a_path_becomes_a_host_name_in_every_representation() {
    for path in ["%2Frun%2Fcrisp%2Fcrisp.sock", "/run/crisp/crisp.sock", "run%2Fcrisp", "%", "/", "/%/%//", ""] {
        for field in authorities(path) {
            assert_eq!(mended(&field.written()), field.mended().written(), "{field:?}");
        }
    }
}

#[test]
fn a_character_is_found_after_codes_of_every_length() {
    for before in ENDS.chars() {
        for times in 1..=8 {
            let path = format!("{}/{before}%", String::from(before).repeat(times));
            for field in authorities(&path) {
                assert_eq!(mended(&field.written()), field.mended().written(), "{field:?}");
            }
        }
    }
}

#[test]
fn a_long_value_is_rewritten_to_its_end() {
    for field in authorities(&"%2Frun".repeat(500)) {
        assert_eq!(mended(&field.written()), field.mended().written(), "{field:?}");
    }
}

#[test]
fn a_code_that_is_not_in_host_names_stops_the_rewrite() {
    let field = |value| Field::Known { way: 0x40, name: 1, value, huffman: true }.written();
    assert_eq!(mended(&field("/\\/".to_owned())), field("-\\/".to_owned()));
}

#[test]
fn other_fields_keep_their_slashes() {
    for way in WAYS {
        for huffman in [false, true] {
            let value = "/run%2F".to_owned();
            // A path, a field of the dynamic table, and names that are similar to `:authority`.
            let known = [4, 62].map(|name| Field::Known { way, name, value: value.clone(), huffman });
            let spelled = [":path", "authority", ":authorit", ":authorityy", ""].map(|name| Field::Spelled {
                way,
                name: name.to_owned(),
                name_huffman: huffman,
                value: value.clone(),
                huffman,
            });
            for field in known.into_iter().chain(spelled) {
                assert_eq!(mended(&field.written()), field.written(), "{field:?}");
            }
        }
    }
}

#[test]
fn a_truncated_block_stays_unchanged_from_there() {
    for field in authorities("/run%2F") {
        let (block, whole) = (field.written(), field.mended().written());
        for length in 0..block.len() {
            assert_eq!(mended(&block[..length]), &block[..length], "{field:?}");
            let twice = [whole.as_slice(), &block[..length]].concat();
            assert_eq!(mended(&[block.as_slice(), &block[..length]].concat()), twice, "{field:?}");
        }
    }
}

#[test]
fn an_overlong_integer_stops_the_parser() {
    let authority = b"\x41\x01/";
    for first in [0xff, 0x7f, 0x3f, 0x1f, 0x0f] {
        let long = |bytes| [vec![first], vec![0x80; bytes], vec![0], authority.to_vec()].concat();
        assert_eq!(mended(&long(4)), long(4));
        // A field that is only an index or size; the others continue with a value.
        if matches!(first, 0xff | 0x3f) {
            assert!(mended(&long(3)).ends_with(b"\x41\x01-"));
        }
    }
    let endless = [&[0x41, 0x7f][..], &[0xff; 100]].concat();
    assert_eq!(mended(&endless), endless);
}

fn field() -> impl Strategy<Value = Field> {
    let value = "[%/\\-.2:acFhiknoprstuyz&Z!?'|#>$~^}<{]{0,40}";
    let name = prop_oneof![Just(":authority".to_owned()), "[:ac%/]{0,5}"];
    let way = proptest::sample::select(&WAYS[..]);
    prop_oneof![
        (0..5000_usize).prop_map(Field::FromTable),
        (0..100_000_usize).prop_map(Field::TableSize),
        (way.clone(), prop_oneof![Just(1), 1..200_usize], value, any::<bool>())
            .prop_map(|(way, name, value, huffman)| Field::Known { way, name, value, huffman }),
        (way, name, any::<bool>(), value, any::<bool>()).prop_map(|(way, name, name_huffman, value, huffman)| {
            Field::Spelled { way, name, name_huffman, value, huffman }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_the_values_of_authority_change(fields in proptest::collection::vec(field(), 0..12)) {
        let block: Vec<u8> = fields.iter().flat_map(Field::written).collect();
        let expected: Vec<u8> = fields.iter().flat_map(|field| field.mended().written()).collect();
        prop_assert_eq!(mended(&block), expected);
    }

    #[test]
    fn random_blocks_do_not_panic(block in proptest::collection::vec(any::<u8>(), 0..600)) {
        let once = mended(&block);
        prop_assert_eq!(once.len(), block.len());
        prop_assert_eq!(mended(&once), once);
    }

    #[test]
    fn random_authorities_do_not_panic(
        way in proptest::sample::select(&WAYS[..]),
        huffman in any::<bool>(),
        value in proptest::collection::vec(any::<u8>(), 0..120),
        after in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let upper = if huffman { 0x80 } else { 0 };
        let begin = [vec![way | 1], integer(upper, 0x7f, value.len())].concat();
        let once = mended(&[begin.clone(), value.clone(), after.clone()].concat());
        let (kept, rest) = once.split_at(begin.len());
        let (now, rest) = rest.split_at(value.len());
        prop_assert_eq!(kept, begin);
        prop_assert_eq!(rest, mended(&after));
        prop_assert!(huffman || !now.iter().any(|byte| matches!(byte, b'%' | b'/')));
        prop_assert_eq!(mended(&once), once);
    }
}
