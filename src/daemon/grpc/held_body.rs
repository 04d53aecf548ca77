//! Values that a response holds until it was sent, such as its part of a budget.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

/// An extension of a response that is dropped with its body.
#[derive(Clone)]
pub(super) struct HeldByBody {
    _held: Arc<dyn Any + Send + Sync>,
}

impl HeldByBody {
    pub(super) fn new(held: Arc<impl Any + Send + Sync>) -> Self {
        Self { _held: held }
    }
}

/// Moves the extension of a response into its body.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeldBodyLayer;

impl<S> Layer<S> for HeldBodyLayer {
    type Service = HeldBodies<S>;

    fn layer(&self, inner: S) -> HeldBodies<S> {
        HeldBodies { inner }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct HeldBodies<S> {
    inner: S,
}

impl<S, I, O> Service<Request<I>> for HeldBodies<S>
where
    S: Service<Request<I>, Response = Response<O>>,
    S::Future: Send + 'static,
{
    type Response = Response<HeldBody<O>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let call = self.inner.call(request);
        Box::pin(async move {
            let mut response = call.await?;
            let held = response.extensions_mut().remove::<HeldByBody>();
            Ok(response.map(|body| HeldBody { body, _held: held }))
        })
    }
}

#[derive(Default)]
pub(crate) struct HeldBody<B> {
    body: B,
    _held: Option<HeldByBody>,
}

impl<B: Body + Unpin> Body for HeldBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
