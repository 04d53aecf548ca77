//! What the daemon tells about itself in numbers, to whoever asks with `GET /metrics`. Off unless configured.
//!
//! A *family* is a name, a kind, a sentence and samples; [`text`] writes them down, [`http`] answers. Each subject has a
//! file with a function that tells its families, and a line in [`page`]. Nothing is counted here: numbers are taken
//! from those who have them, at the moment they are asked for.

mod http;
mod images;
mod pods;
mod requests;
mod resizes;
mod text;

use std::sync::Arc;

use crate::grpc::Latencies;
use crate::runtime::Runtime;
pub(crate) use http::{ListenError, Listener};
use text::{Kind, Text};

/// Begins to answer on `listener`, until what is returned is dropped.
pub(crate) fn tell(listener: Listener, runtime: Arc<Runtime>, latencies: Arc<Latencies>) -> http::Telling {
    listener.answer_with(move || page(&runtime, &latencies))
}

/// All there is to tell now.
fn page(runtime: &Runtime, latencies: &Latencies) -> String {
    let mut text = Text::default();
    let mut build = text.family("crisp_build_info", Kind::Gauge, "Which crisp this is; always 1.");
    build.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let store = runtime.images();
    images::tell(&mut text, &store.traffic(), &store.usage(), store.list().len());
    resizes::tell(&mut text, runtime.resizes());
    pods::tell(&mut text, &runtime.population());
    requests::tell(&mut text, &latencies.all());
    text.into()
}
