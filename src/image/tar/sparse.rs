//! Maps of sparse files in tar: old GNU headers and the three PAX forms.

use std::io::Read;

use crate::tar::header::number;
use crate::tar::pax::decimal;
use crate::tar::reader::{TarError, TarReader};

/// 16 bytes each, so a map takes 1 MiB at most.
const SEGMENTS_MAX: usize = 1 << 16;

/// A range of data in a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) size: u64,
    pub(crate) segments: Vec<Segment>,
}

impl Map {
    /// Checks that segments are in order, inside the file and in total as long as the data in the
    /// stream.
    pub(crate) fn check(&self, data: u64) -> Result<(), TarError> {
        let mut end = 0u64;
        let mut total = 0u64;
        for segment in &self.segments {
            if segment.offset < end {
                return Err(TarError::Sparse);
            }
            end = segment.offset.checked_add(segment.length).ok_or(TarError::Sparse)?;
            total = total.checked_add(segment.length).ok_or(TarError::Sparse)?;
        }
        // The kernel uses signed offsets.
        if end > self.size || total != data || i64::try_from(self.size).is_err() {
            Err(TarError::Sparse)
        } else {
            Ok(())
        }
    }
}

/// The `GNU.sparse.*` records read so far.
#[derive(Debug, Default)]
pub(crate) struct Pax {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    major: Option<u64>,
    segments: Option<Vec<Segment>>,
    offset: Option<u64>,
}

impl Pax {
    pub(crate) fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), TarError> {
        let value_number = || decimal(value).ok_or(TarError::Sparse);
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(value_number()?),
            b"major" => self.major = Some(value_number()?),
            b"minor" | b"numblocks" => {}
            b"offset" => self.offset = Some(value_number()?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or(TarError::Sparse)?;
                push(self.segments.get_or_insert_default(), offset, value_number()?)?;
            }
            b"map" => {
                let segments = self.segments.insert(Vec::new());
                let mut numbers = value.split(|&b| b == b',');
                while let Some(offset) = numbers.next() {
                    let length = numbers.next().ok_or(TarError::Sparse)?;
                    let (offset, length) = decimal(offset).zip(decimal(length)).ok_or(TarError::Sparse)?;
                    push(segments, offset, length)?;
                }
            }
            _ => return Err(TarError::Sparse),
        }
        Ok(())
    }

    /// Returns the whole map; in format 1.0 it is read from the start of the entry's data.
    pub(crate) fn finish<R: Read>(self, archive: &mut TarReader<R>) -> Result<Option<Map>, TarError> {
        let segments = match (self.major, self.segments) {
            (None | Some(0), None) if self.size.is_none() && self.name.is_none() => return Ok(None),
            (None | Some(0), Some(segments)) => segments,
            (Some(1), None) => leading_map(archive)?,
            _ => return Err(TarError::Sparse),
        };
        let size = self.size.ok_or(TarError::Sparse)?;
        Ok(Some(Map { name: self.name, size, segments }))
    }
}

/// Parses decimal numbers, one per line, padded to a whole block: count, then offset and length of
/// each segment.
fn leading_map<R: Read>(archive: &mut TarReader<R>) -> Result<Vec<Segment>, TarError> {
    let mut block = [0u8; 512];
    let mut at = block.len();
    let mut line = || -> Result<u64, TarError> {
        let mut digits = Vec::with_capacity(20);
        loop {
            if at == block.len() {
                archive.read_exact(&mut block)?;
                at = 0;
            }
            let byte = block[at];
            at += 1;
            match byte {
                b'\n' => return decimal(&digits).ok_or(TarError::Sparse),
                _ if digits.len() == 20 => return Err(TarError::Sparse),
                _ => digits.push(byte),
            }
        }
    };
    let count = line()?;
    let mut segments = Vec::new();
    for _ in 0..count {
        let offset = line()?;
        push(&mut segments, offset, line()?)?;
    }
    Ok(segments)
}

/// Parses the map in an old GNU header and the blocks that follow it.
pub(crate) fn old_gnu(
    header: &[u8; 512],
    mut more: impl FnMut() -> Result<[u8; 512], TarError>,
) -> Result<Map, TarError> {
    let mut segments = Vec::new();
    let mut take = |pairs: &[u8]| -> Result<(), TarError> {
        for pair in pairs.chunks_exact(24).take_while(|pair| pair.iter().any(|&b| b != 0)) {
            let (offset, length) = number(&pair[..12]).zip(number(&pair[12..])).ok_or(TarError::Sparse)?;
            push(&mut segments, offset, length)?;
        }
        Ok(())
    };
    take(&header[386..482])?;
    let mut extended = header[482] != 0;
    // A chain of blocks without segments would not reach the segment limit.
    let mut blocks = 0;
    while extended {
        blocks += 1;
        if blocks > SEGMENTS_MAX {
            return Err(TarError::Sparse);
        }
        let block = more()?;
        take(&block[..504])?;
        extended = block[504] != 0;
    }
    let size = number(&header[483..495]).ok_or(TarError::Sparse)?;
    Ok(Map { name: None, size, segments })
}

fn push(segments: &mut Vec<Segment>, offset: u64, length: u64) -> Result<(), TarError> {
    if segments.len() == SEGMENTS_MAX {
        return Err(TarError::Sparse);
    }
    segments.push(Segment { offset, length });
    Ok(())
}
