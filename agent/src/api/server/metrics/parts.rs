//! An answer's body in parts that other answers have as well, so that megabytes are not copied for each.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// What is left to send. The length is known from the start.
#[derive(Debug)]
pub(super) struct Parts(VecDeque<Bytes>);

impl Parts {
    /// A body of these parts, one after another.
    pub(super) fn body<const N: usize>(parts: [Bytes; N]) -> Body {
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        Body::new(Self(parts.collect()))
    }
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.0.pop_front();
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_parts_follow_one_another_and_their_length_is_known() {
        for (parts, whole) in [
            (["a", "", "bc"], "abc"),
            (["", "", ""], ""),
            (["", "a", ""], "a"),
        ] {
            let body = Parts::body(parts.map(Bytes::from));
            assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
            assert_eq!(body.is_end_stream(), whole.is_empty());
            let read = axum::body::to_bytes(body, 10).await.unwrap();
            assert_eq!(read, whole);
        }
    }
}
