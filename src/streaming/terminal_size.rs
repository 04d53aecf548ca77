//! Sizes of a client's terminal: a sequence of JSON objects.

use serde::Deserialize;

use crate::recv_buffer::RecvStream;

/// Maximum length of a size.
const SIZE_MAX: usize = 4 << 10;

/// A terminal size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Size {
    #[serde(rename = "Width", alias = "width")]
    pub width: u16,
    #[serde(rename = "Height", alias = "height")]
    pub height: u16,
}

#[derive(Debug)]
pub struct Resizes {
    input: RecvStream,
    waiting: Vec<u8>,
}

impl Resizes {
    pub(crate) fn new(input: RecvStream) -> Self {
        Self { input, waiting: Vec::new() }
    }

    /// Returns the next size that is not 0; `None` at the end or after invalid input.
    pub async fn next(&mut self) -> Option<Size> {
        loop {
            while let Some(size) = self.parse()? {
                if size.width > 0 && size.height > 0 {
                    return Some(size);
                }
            }
            let more = self.input.next().await.ok()??;
            self.waiting.extend_from_slice(&more);
        }
    }

    fn parse(&mut self) -> Option<Option<Size>> {
        let mut sizes = serde_json::Deserializer::from_slice(&self.waiting).into_iter::<Size>();
        match sizes.next() {
            Some(Ok(size)) => {
                let read = sizes.byte_offset();
                self.waiting.drain(..read);
                Some(Some(size))
            }
            Some(Err(error)) if !error.is_eof() => None,
            _ if self.waiting.len() > SIZE_MAX => None,
            _ => Some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::recv_buffer::RecvBuffer;

    async fn sizes(pieces: &[&str]) -> Vec<(u16, u16)> {
        let recv_buffer = RecvBuffer::new(Arc::default());
        let mut resizes = Resizes::new(RecvStream(recv_buffer.clone()));
        pieces.iter().for_each(|piece| recv_buffer.put(piece.to_string().into()));
        recv_buffer.end(Ok(()));
        let mut all = Vec::new();
        while let Some(Size { width, height }) = resizes.next().await {
            all.push((width, height));
        }
        all
    }

    #[tokio::test]
    async fn sizes_are_parsed_however_they_are_split() {
        let one = r#"{"Width":80,"Height":24}"#;
        assert_eq!(sizes(&[one, "\n", one]).await, [(80, 24), (80, 24)]);
        assert_eq!(sizes(&[r#"{"Wid"#, r#"th":1,"Height":2}{"Width":3,"#, r#""Height":4}"#]).await, [(1, 2), (3, 4)]);
        assert_eq!(
            sizes(&[r#"{"Width":0,"Height":9}{"width":5,"height":6}"#]).await,
            [(5, 6)],
            "a width of 0 is ignored"
        );
    }

    #[tokio::test]
    async fn invalid_input_ends_the_sizes() {
        assert_eq!(sizes(&["[1]", r#"{"Width":1,"Height":2}"#]).await, []);
        assert_eq!(sizes(&[r#"{"Width":70000,"Height":2}"#]).await, []);
        assert_eq!(sizes(&["{\"", &"x".repeat(8 << 10), r#"":1}"#]).await, []);
    }
}
