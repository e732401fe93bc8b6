//! [`Proxy`]: stands between a client and the emulator, counts requests and tampers with answers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use syncguard_firestore::gcloud_sdk::google::rpc;
use syncguard_firestore::gcloud_sdk::prost::Message as _;
use syncguard_firestore::gcloud_sdk::prost_types::Any;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tower_service::Service;

use super::Database;
use super::listens::Listens;

/// What happens to the next request of a method.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// None after all.
    None,
    /// It is carried out, and answered with this code all the same.
    AppliedThen(Code),
    /// It is not carried out.
    Refused(Code),
    /// It is denied for one of Google's own reasons.
    Denied(&'static str),
    /// It is answered with this HTTP status, and nothing that gRPC knows.
    PlainHttp(u16),
    /// It is neither carried out nor answered.
    Lost,
    /// It is carried out, and answered later.
    AnsweredLate(Duration),
}

/// A gRPC server that forwards to the emulator.
#[derive(Clone)]
pub struct Proxy {
    upstream: Channel,
    state: Arc<Mutex<State>>,
    pub listens: Listens,
}

#[derive(Default)]
struct State {
    requests: HashMap<String, usize>,
    faults: Vec<(&'static str, Fault)>,
    authorization: Option<String>,
}

impl Proxy {
    /// Starts one before the emulator of a database; returns it, and the database behind it.
    pub async fn before(database: &Database) -> (Self, Database) {
        let upstream = format!("http://{}", database.host);
        let upstream = Channel::from_shared(upstream).unwrap().connect_lazy();
        let proxy = Self {
            upstream,
            state: Arc::default(),
            listens: Listens::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let server = Server::builder().add_service(proxy.clone());
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let project = database.project.clone();
        (proxy, Database { host, project })
    }

    /// Has the next request of a method fail, after those that are to fail already.
    pub fn fail_next(&self, method: &'static str, fault: Fault) {
        self.state.lock().unwrap().faults.push((method, fault));
    }

    /// The requests since the last call, by method, as in `BatchGetDocuments 1, Commit 1`.
    pub fn requests(&self) -> String {
        let requests = std::mem::take(&mut self.state.lock().unwrap().requests);
        let mut counts: Vec<_> = requests.into_iter().collect();
        counts.sort();
        let texts = counts
            .iter()
            .map(|(method, count)| format!("{method} {count}"));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// The `authorization` of the last request.
    pub fn authorization(&self) -> Option<String> {
        self.state.lock().unwrap().authorization.clone()
    }
}

impl NamedService for Proxy {
    const NAME: &'static str = "google.firestore.v1.Firestore";
}

impl Service<Request<Body>> for Proxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let authorization = request.headers().get("authorization");
        let fault = {
            let mut state = self.state.lock().unwrap();
            *state.requests.entry(method.clone()).or_default() += 1;
            state.authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
            let next = state.faults.iter().position(|(of, _)| *of == method);
            next.map(|next| state.faults.remove(next).1)
        };
        let request = match &*method {
            "Listen" => request.map(|body| self.listens.follow(body)),
            _ => request,
        };
        let mut upstream = self.upstream.clone();
        // On a task of its own: a client that goes away does not take the request back.
        let forward = async move || {
            let forwarded = async move {
                std::future::poll_fn(|cx| upstream.poll_ready(cx)).await?;
                upstream.call(request).await
            };
            match tokio::spawn(forwarded).await.unwrap() {
                Ok(response) => response,
                Err(error) => Status::unavailable(error.to_string()).into_http(),
            }
        };
        Box::pin(async move {
            Ok(match fault {
                None | Some(Fault::None) => forward().await,
                Some(Fault::Lost) => std::future::pending().await,
                Some(Fault::AnsweredLate(delay)) => {
                    let answer = forward().await;
                    tokio::time::sleep(delay).await;
                    answer
                }
                Some(Fault::Refused(code)) => Status::new(code, "refused").into_http(),
                Some(Fault::Denied(reason)) => denied(reason).into_http(),
                Some(Fault::PlainHttp(status)) => {
                    let response = Response::builder().status(status).body(Body::empty());
                    response.unwrap()
                }
                Some(Fault::AppliedThen(code)) => {
                    forward().await;
                    Status::new(code, "applied all the same").into_http()
                }
            })
        })
    }
}

/// As Google denies a request before Firestore sees it.
pub fn denied(reason: &str) -> Status {
    let info = rpc::ErrorInfo {
        reason: reason.to_owned(),
        domain: "googleapis.com".to_owned(),
        ..rpc::ErrorInfo::default()
    };
    let details = rpc::Status {
        code: Code::PermissionDenied.into(),
        details: vec![Any {
            type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(),
            value: info.encode_to_vec(),
        }],
        ..rpc::Status::default()
    };
    let details = details.encode_to_vec().into();
    Status::with_details(Code::PermissionDenied, "denied", details)
}
