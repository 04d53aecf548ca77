//! A plugin that can also send raw bytes.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::api::{
    ConfigureRequest, ConfigureResponse, Container, PodSandbox, RegisterPluginRequest, SynchronizeRequest,
    SynchronizeResponse,
};
use crate::wire::{Request, Response, Status};

const PATIENCE: Duration = Duration::from_secs(30);

/// A message from the runtime.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) connection: u32,
    pub(crate) stream: u32,
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
}

/// A call from the runtime.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) stream: u32,
    pub(crate) request: Request,
}

impl Called {
    pub(crate) fn method(&self) -> &str {
        &self.request.method
    }

    pub(crate) fn message<M: Message + Default>(&self) -> M {
        M::decode(&self.request.payload[..]).unwrap()
    }
}

pub(crate) struct Fake {
    pub(crate) socket: UnixStream,
    buffers: [Vec<u8>; 2],
    received: VecDeque<Received>,
    next_stream: u32,
    /// Sent in RegisterPlugin.
    pub(crate) version: &'static str,
    /// All but ValidateContainerAdjustment, unless a test changes it.
    pub(crate) events: i32,
    pub(crate) configured: Option<ConfigureRequest>,
}

/// Returns a trunk frame.
pub(crate) fn frame(connection: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&connection.to_be_bytes()[..], &length.to_be_bytes(), payload].concat()
}

/// Returns a ttrpc message.
pub(crate) fn message(stream: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&length.to_be_bytes()[..], &stream.to_be_bytes(), &[kind, 0], payload].concat()
}

impl Fake {
    pub(crate) async fn connect(path: &Path) -> Self {
        Self::over(UnixStream::connect(path).await.unwrap())
    }

    pub(crate) fn over(socket: UnixStream) -> Self {
        Self {
            socket,
            buffers: [Vec::new(), Vec::new()],
            received: VecDeque::new(),
            next_stream: 1,
            version: "v0.12.2",
            events: 0x1fff,
            configured: None,
        }
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    /// Sends a request to the runtime.
    pub(crate) async fn request(&mut self, method: &str, payload: &impl Message) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Runtime".to_owned(),
            method: method.to_owned(),
            payload: payload.encode_to_vec(),
            ..Request::default()
        };
        self.raw(&frame(2, &message(stream, 1, &request.encode_to_vec()))).await;
        stream
    }

    pub(crate) async fn answer(&mut self, call: &Called, payload: &impl Message) {
        let response = Response { status: None, payload: payload.encode_to_vec() };
        self.raw(&frame(1, &message(call.stream, 2, &response.encode_to_vec()))).await;
    }

    pub(crate) async fn refuse(&mut self, call: &Called, code: i32, text: &str) {
        let response = Response { status: Some(Status { code, message: text.to_owned() }), payload: Vec::new() };
        self.raw(&frame(1, &message(call.stream, 2, &response.encode_to_vec()))).await;
    }

    /// Reads the next message; `None` when the runtime has closed the connection.
    pub(crate) async fn receive(&mut self) -> Option<Received> {
        loop {
            if let Some(received) = self.received.pop_front() {
                return Some(received);
            }
            let mut header = [0; 8];
            let read = tokio::time::timeout(PATIENCE, self.socket.read_exact(&mut header)).await;
            read.expect("no message and no end of the connection").ok()?;
            let connection = u32::from_be_bytes(header[..4].try_into().unwrap());
            let mut payload = vec![0; u32::from_be_bytes(header[4..].try_into().unwrap()).try_into().unwrap()];
            self.socket.read_exact(&mut payload).await.ok()?;
            let buffer = &mut self.buffers[usize::try_from(connection).unwrap() - 1];
            buffer.extend(payload);
            while buffer.len() >= 10 {
                let length: usize = u32::from_be_bytes(buffer[..4].try_into().unwrap()).try_into().unwrap();
                if buffer.len() < 10 + length {
                    break;
                }
                let rest = buffer.split_off(10 + length);
                let message = std::mem::replace(buffer, rest);
                let stream = u32::from_be_bytes(message[4..8].try_into().unwrap());
                let payload = message[10..].to_vec();
                self.received.push_back(Received { connection, stream, kind: message[8], payload });
            }
        }
    }

    /// Waits until the runtime closes the connection.
    pub(crate) async fn is_closed(&mut self) {
        while self.receive().await.is_some() {}
    }

    /// Answers Synchronize until the runtime closes the connection.
    pub(crate) async fn until_closed(&mut self) {
        while let Some(received) = self.receive().await {
            if received.connection == 1 {
                let request = Request::decode(&received.payload[..]).unwrap();
                let call = Called { stream: received.stream, request };
                self.answer(&call, &SynchronizeResponse::default()).await;
            }
        }
    }

    /// Reads the next call; drops responses.
    pub(crate) async fn call(&mut self) -> Called {
        loop {
            let received = self.receive().await.expect("the runtime closed the connection");
            if received.connection == 1 {
                assert_eq!(received.kind, 1);
                let request = Request::decode(&received.payload[..]).unwrap();
                return Called { stream: received.stream, request };
            }
        }
    }

    /// Reads the response to a request of this plugin.
    pub(crate) async fn response(&mut self, stream: u32) -> Response {
        loop {
            let received = self.receive().await.expect("the runtime closed the connection");
            if received.connection == 2 {
                assert_eq!((received.kind, received.stream), (2, stream));
                return Response::decode(&received.payload[..]).unwrap();
            }
        }
    }

    /// Registers as `index-name` and answers Configure.
    pub(crate) async fn register(&mut self, index: &str, name: &str) {
        let register = RegisterPluginRequest {
            plugin_name: name.to_owned(),
            plugin_idx: index.to_owned(),
            nri_version: self.version.to_owned(),
        };
        self.request("RegisterPlugin", &register).await;
        let call = self.call().await;
        assert_eq!(call.method(), "Configure");
        self.configured = Some(call.message());
        self.answer(&call, &ConfigureResponse { events: self.events }).await;
    }

    /// Answers Synchronize, and returns all objects and the number of messages.
    pub(crate) async fn synchronize(&mut self) -> (Vec<PodSandbox>, Vec<Container>, usize) {
        let (mut pods, mut containers, mut messages) = (Vec::new(), Vec::new(), 0);
        loop {
            let call = self.call().await;
            assert_eq!(call.method(), "Synchronize");
            let request: SynchronizeRequest = call.message();
            pods.extend(request.pods);
            containers.extend(request.containers);
            messages += 1;
            self.answer(&call, &SynchronizeResponse { update: Vec::new(), more: request.more }).await;
            if !request.more {
                return (pods, containers, messages);
            }
        }
    }

    /// Connects, registers and synchronizes.
    pub(crate) async fn join(path: &Path, index: &str, name: &str) -> Self {
        let mut plugin = Self::connect(path).await;
        plugin.register(index, name).await;
        plugin.synchronize().await;
        plugin
    }

    /// Reads the next call, which must be of this method.
    pub(crate) async fn expect(&mut self, method: &str) -> Called {
        let call = self.call().await;
        assert_eq!(call.method(), method);
        call
    }

    /// Checks that no call arrives for this long.
    pub(crate) async fn expect_nothing(&mut self, time: Duration) {
        assert!(self.received.is_empty());
        let mut byte = [0];
        if let Ok(read) = tokio::time::timeout(time, self.socket.read(&mut byte)).await {
            panic!("unexpected bytes: {read:?}");
        }
    }
}
