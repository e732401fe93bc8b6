//! Maps Firestore's errors to [`LockError`]s.

use std::error::Error;
use std::io;
use std::sync::Arc;

use gcloud_sdk::error::ErrorKind;
use gcloud_sdk::google::rpc;
use gcloud_sdk::prost::Message as _;
use syncguard_core::backend::Redacted;
use syncguard_core::{ErrorCode, LockError};
use tonic::{Code, Status};

/// Marks of a text that names a document, and so a key. Firestore and its emulator escape names in
/// several ways, so a search for the key itself would miss them.
const DOCUMENT_MARKS: [&str; 5] = ["documents/", "path=", "path <", "Resource id", "Element"];

const NO_CREDENTIALS: &str = "no usable Google credentials; set GOOGLE_APPLICATION_CREDENTIALS to a \
     key file, run `gcloud auth application-default login`, or attach a service account to this \
     machine";

const RUNTIME_ENDED: &str = "the Tokio runtime in which this backend connected has ended; connect \
     again in the current one";

/// Why Google denies requests, apart from a missing role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    ApiDisabled,
    BillingDisabled,
    QuotaProject,
    ScopeInsufficient,
}

impl Denial {
    /// Google's own reason. Firestore's are of another domain, and its rules have none.
    pub(crate) fn of(status: &Status) -> Option<Self> {
        let details = rpc::Status::decode(status.details()).ok()?.details;
        let reasons = details.iter().filter_map(|detail| {
            let is_info = detail.type_url.ends_with("/google.rpc.ErrorInfo");
            let info = is_info
                .then(|| rpc::ErrorInfo::decode(&*detail.value))?
                .ok()?;
            (info.domain == "googleapis.com").then_some(info.reason)
        });
        reasons.into_iter().find_map(|reason| match &*reason {
            "SERVICE_DISABLED" => Some(Self::ApiDisabled),
            "BILLING_DISABLED" => Some(Self::BillingDisabled),
            "USER_PROJECT_DENIED" | "CONSUMER_INVALID" | "CONSUMER_SUSPENDED" => {
                Some(Self::QuotaProject)
            }
            "ACCESS_TOKEN_SCOPE_INSUFFICIENT" => Some(Self::ScopeInsufficient),
            _ => None,
        })
    }

    pub(crate) fn found(self) -> &'static str {
        match self {
            Self::ApiDisabled => {
                "the Firestore API is not enabled in the project, or in the quota project of the \
                 credentials"
            }
            Self::BillingDisabled => "billing is disabled in the project",
            Self::QuotaProject => {
                "the credentials may not use their quota project, or it is suspended"
            }
            Self::ScopeInsufficient => "the access token lacks the scope for Firestore",
        }
    }

    pub(crate) fn fix(self) -> &'static str {
        match self {
            Self::ApiDisabled => {
                "run `gcloud services enable firestore.googleapis.com` for that project, and wait \
                 some minutes"
            }
            Self::BillingDisabled => "enable billing for the project",
            Self::QuotaProject => {
                "grant the role `roles/serviceusage.serviceUsageConsumer` on the quota project, or \
                 set another one with `gcloud auth application-default set-quota-project`"
            }
            Self::ScopeInsufficient => {
                "give the credentials the scope `https://www.googleapis.com/auth/datastore`"
            }
        }
    }
}

/// A read that failed.
pub(crate) fn of_read(status: &Status) -> LockError {
    LockError::new(code(status), message(status)).with_source(redacted(status))
}

/// A commit that failed for another reason than a [changed document](state_moved).
pub(crate) fn of_commit(status: &Status) -> LockError {
    let error = of_read(status);
    if may_have_been_applied(status) {
        return error.with_outcome_unknown();
    }
    error
}

/// An operation whose documents other clients changed or locked at every attempt.
pub(crate) fn of_contention(status: &Status) -> LockError {
    let message = "other clients changed or locked the documents at every attempt";
    LockError::new(ErrorCode::ServiceUnavailable, message).with_source(redacted(status))
}

/// A connection that could not be made.
pub(crate) fn of_connecting(error: &gcloud_sdk::error::Error) -> LockError {
    let code = code_of_client(error.kind());
    // The client's own text omits the error of the transport.
    let cause = match error.kind() {
        ErrorKind::GrpcStatus(error) => chain(error),
        ErrorKind::Credentials(error) => chain(error),
        ErrorKind::CredentialsBuild(error) => chain(error),
        _ => error.to_string(),
    };
    let message = match is_about_credentials(error.kind()) {
        true => NO_CREDENTIALS,
        false => "cannot connect to Firestore",
    };
    LockError::new(code, message).with_source(io::Error::other(cause))
}

/// The status of a request that was not sent, because the deadline of its operation had passed.
pub(crate) fn past_deadline() -> Status {
    unsent(
        Code::DeadlineExceeded,
        NotSent("the deadline passed before the request was sent"),
    )
}

/// The status of a request that no connection accepted in time.
pub(crate) fn no_connection() -> Status {
    unsent(
        Code::DeadlineExceeded,
        NotSent("the deadline passed before a connection accepted the request"),
    )
}

/// The status of a request on a channel whose task has ended. Only the end of its runtime causes that.
pub(crate) fn channel_ended() -> Status {
    unsent(Code::Unavailable, NotSent(RUNTIME_ENDED))
}

fn unsent(code: Code, reason: NotSent) -> Status {
    let mut status = Status::new(code, reason.0);
    status.set_source(Arc::new(reason));
    status
}

/// Whether Firestore refused a commit because a document has changed since it was read, or because a
/// transaction locks it. Nothing was applied; reading again shows the current state.
pub(crate) fn state_moved(status: &Status) -> bool {
    let moved = matches!(
        status.code(),
        Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists | Code::NotFound
    );
    moved && status.source().is_none()
}

/// Whether Firestore, or a proxy before it, will refuse the request again.
pub(crate) fn is_refusal(status: &Status) -> bool {
    let refused = matches!(
        status.code(),
        Code::PermissionDenied | Code::Unimplemented | Code::Unknown
    );
    refused && status.source().is_none()
}

fn may_have_been_applied(status: &Status) -> bool {
    let undecided = matches!(
        status.code(),
        Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    );
    // Without credentials, or after the deadline, the request was never sent. If there is a source, it is
    // an error of the transport: its code does not say what the server did.
    let is_transport = status.source().is_some();
    (undecided || is_transport) && client_error(status).is_none() && unsent_reason(status).is_none()
}

fn unsent_reason(status: &Status) -> Option<&NotSent> {
    status.source()?.downcast_ref()
}

fn message(status: &Status) -> String {
    if unsent_reason(status) == Some(&NotSent(RUNTIME_ENDED)) {
        return RUNTIME_ENDED.to_owned();
    }
    if let Some(denial) = Denial::of(status) {
        return format!("{}; {}", denial.found(), denial.fix());
    }
    let message = match status.code() {
        _ if client_error(status).is_some_and(is_about_credentials) => NO_CREDENTIALS,
        Code::Unauthenticated => "Firestore does not accept the credentials",
        Code::PermissionDenied => {
            "permission denied; grant the role `roles/datastore.user`, or check the security rules"
        }
        Code::Unimplemented | Code::Unknown if status.source().is_none() => {
            "the server's replies are not those of Firestore; check the address"
        }
        _ => "the request to Firestore failed",
    };
    message.to_owned()
}

fn code(status: &Status) -> ErrorCode {
    if let Some(kind) = client_error(status) {
        return code_of_client(kind);
    }
    if unsent_reason(status) == Some(&NotSent(RUNTIME_ENDED)) {
        // Not retryable: no later call of this backend succeeds.
        return ErrorCode::InvalidArgument;
    }
    let of_transport = status.source().is_some();
    match status.code() {
        Code::DeadlineExceeded => ErrorCode::NetworkTimeout,
        // A broken connection or a server that is not Firestore, with any code of the transport.
        _ if of_transport => ErrorCode::ServiceUnavailable,
        Code::Unavailable
        | Code::Internal
        | Code::Aborted
        | Code::AlreadyExists
        | Code::Cancelled
        | Code::Unknown
        | Code::Unimplemented => ErrorCode::ServiceUnavailable,
        Code::PermissionDenied | Code::Unauthenticated => ErrorCode::AuthFailed,
        Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound | Code::OutOfRange => {
            ErrorCode::InvalidArgument
        }
        Code::ResourceExhausted => ErrorCode::RateLimited,
        Code::Ok | Code::DataLoss => ErrorCode::Internal,
    }
}

fn code_of_client(kind: &ErrorKind) -> ErrorCode {
    match kind {
        ErrorKind::Credentials(error) if error.is_transient() => ErrorCode::ServiceUnavailable,
        ErrorKind::Credentials(_)
        | ErrorKind::CredentialsBuild(_)
        | ErrorKind::CryptoProviderMissing => ErrorCode::AuthFailed,
        ErrorKind::GrpcStatus(_) | ErrorKind::Http(_) | ErrorKind::HttpStatus(_) => {
            ErrorCode::ServiceUnavailable
        }
        ErrorKind::UrlError(_) | ErrorKind::InvalidApiUrl(_) | ErrorKind::HeaderValue(_) => {
            ErrorCode::InvalidArgument
        }
        _ => ErrorCode::Internal,
    }
}

fn is_about_credentials(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Credentials(_) | ErrorKind::CredentialsBuild(_)
    )
}

/// The error of the client itself, such as credentials that yield no token.
fn client_error(status: &Status) -> Option<&ErrorKind> {
    let mut link = status.source();
    while let Some(error) = link {
        if let Some(error) = error.downcast_ref::<gcloud_sdk::error::Error>() {
            return Some(error.kind());
        }
        // The middleware boxes the error twice.
        if let Some(error) = error.downcast_ref::<Box<gcloud_sdk::error::Error>>() {
            return Some(error.kind());
        }
        link = error.source();
    }
    None
}

/// The status, which shows no parts that may quote a key: no metadata and binary details, and no message that names
/// a document.
fn redacted(status: &Status) -> Redacted {
    let names_document = DOCUMENT_MARKS
        .iter()
        .any(|mark| status.message().contains(mark));
    let message = if names_document {
        "(redacted: it names a document)"
    } else {
        status.message()
    };
    let mut shown = format!("{:?}: {message}", status.code());
    // Errors of the transport and of credentials name no document.
    if let Some(source) = status.source() {
        shown += &format!(": {}", chain(source));
    }
    Redacted::new(status.clone(), shown)
}

/// Why the request was not sent.
#[derive(Debug, PartialEq, Eq)]
struct NotSent(&'static str);

impl std::fmt::Display for NotSent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for NotSent {}

/// The text of an error and its sources.
fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use gcloud_sdk::google_cloud_auth::credentials::service_account;
    use gcloud_sdk::google_cloud_auth::errors::CredentialsError;

    use super::*;

    /// gRPC code, error code, and whether a commit may have been applied.
    const TABLE: [(Code, ErrorCode, bool); 17] = [
        (Code::Ok, ErrorCode::Internal, false),
        (Code::Cancelled, ErrorCode::ServiceUnavailable, true),
        (Code::Unknown, ErrorCode::ServiceUnavailable, true),
        (Code::InvalidArgument, ErrorCode::InvalidArgument, false),
        (Code::DeadlineExceeded, ErrorCode::NetworkTimeout, true),
        (Code::NotFound, ErrorCode::InvalidArgument, false),
        (Code::AlreadyExists, ErrorCode::ServiceUnavailable, false),
        (Code::PermissionDenied, ErrorCode::AuthFailed, false),
        (Code::ResourceExhausted, ErrorCode::RateLimited, false),
        (Code::FailedPrecondition, ErrorCode::InvalidArgument, false),
        (Code::Aborted, ErrorCode::ServiceUnavailable, false),
        (Code::OutOfRange, ErrorCode::InvalidArgument, false),
        (Code::Unimplemented, ErrorCode::ServiceUnavailable, false),
        (Code::Internal, ErrorCode::ServiceUnavailable, true),
        (Code::Unavailable, ErrorCode::ServiceUnavailable, true),
        (Code::DataLoss, ErrorCode::Internal, true),
        (Code::Unauthenticated, ErrorCode::AuthFailed, false),
    ];

    #[test]
    fn every_grpc_code_has_its_error() {
        for (number, (code, expected, applied)) in (0..).zip(TABLE) {
            assert_eq!(
                code,
                Code::from_i32(number),
                "the table is in order and complete"
            );
            let status = Status::new(code, "a message");
            assert_eq!(of_read(&status).code(), expected, "{code:?}");
            assert!(
                !of_read(&status).outcome_unknown(),
                "a read leaves nothing behind"
            );
            assert_eq!(of_commit(&status).code(), expected, "{code:?}");
            assert_eq!(of_commit(&status).outcome_unknown(), applied, "{code:?}");
            assert_eq!(of_contention(&status).code(), ErrorCode::ServiceUnavailable);
            assert!(!(applied && state_moved(&status)), "{code:?}");
        }
    }

    #[test]
    fn a_broken_connection_is_no_internal_error() {
        let broken = io::Error::from(io::ErrorKind::ConnectionReset);
        let status = Status::from_error(Box::new(broken));
        assert_eq!(status.code(), Code::Unknown);
        assert_eq!(of_commit(&status).code(), ErrorCode::ServiceUnavailable);
        assert!(of_commit(&status).outcome_unknown());
        let source = of_commit(&status).source().unwrap().to_string();
        assert!(source.contains("connection reset"), "{source}");
    }

    #[test]
    fn a_missing_token_is_a_failure_of_credentials_with_a_known_outcome() {
        let error = gcloud_sdk::error::Error::from(ErrorKind::CryptoProviderMissing);
        let boxed: Box<dyn Error + Send + Sync> = Box::new(Box::new(error));
        let status = Status::from_error(boxed);
        assert_eq!(of_commit(&status).code(), ErrorCode::AuthFailed);
        assert!(!of_commit(&status).outcome_unknown());
    }

    #[test]
    fn missing_credentials_say_how_to_provide_them() {
        let none = service_account::Builder::new(serde_json::json!({})).build();
        let unbuilt = ErrorKind::CredentialsBuild(none.unwrap_err());
        for (transient, expected) in [
            (true, ErrorCode::ServiceUnavailable),
            (false, ErrorCode::AuthFailed),
        ] {
            let no_token = CredentialsError::from_msg(transient, "no metadata server");
            let error = of_connecting(&ErrorKind::Credentials(no_token).into());
            assert_eq!(error.code(), expected);
            assert!(error.message().contains("GOOGLE_APPLICATION_CREDENTIALS"));
            let source = error.source().unwrap().to_string();
            assert!(source.contains("no metadata server"), "{source}");
        }
        let error = of_connecting(&unbuilt.into());
        assert_eq!(error.code(), ErrorCode::AuthFailed);
        assert!(
            error
                .message()
                .contains("gcloud auth application-default login")
        );
    }

    #[test]
    fn an_error_of_the_transport_settles_nothing_whatever_its_code() {
        for code in (1..17).map(Code::from_i32) {
            let mut status = Status::new(code, "h2 protocol error");
            status.set_source(Arc::new(io::Error::other("calm down")));
            let error = of_commit(&status);
            assert!(error.outcome_unknown() && !state_moved(&status), "{code:?}");
            assert!(error.is_retryable(), "{error:?}");
        }
    }

    #[test]
    fn a_request_past_its_deadline_timed_out_and_was_never_sent() {
        for error in [of_read(&past_deadline()), of_commit(&past_deadline())] {
            assert_eq!(error.code(), ErrorCode::NetworkTimeout);
            assert!(!error.outcome_unknown());
            let source = error.source().unwrap().to_string();
            assert!(source.contains("before the request was sent"), "{source}");
        }
    }

    #[test]
    fn messages_that_name_a_document_are_redacted() {
        for message in [
            "No document to update: projects/p/databases/d/documents/locks/secret",
            "entity already exists: EntityRef{partitionRef=dev~p, path=/locks/secret}",
            "no entity to update: app: \"dev~p\"\npath <\n  Element {\n    name: \"secret\"",
            "Resource id \"secret\" is invalid because it is reserved.",
        ] {
            let mut status = Status::with_details(Code::NotFound, message, "secret".into());
            status
                .metadata_mut()
                .insert("x-name", "secret".parse().unwrap());
            let error = of_commit(&status);
            let mut texts = vec![error.to_string(), format!("{error:?}")];
            texts.push(format!("{:?}", error.source().unwrap()));
            assert!(
                !texts.iter().any(|text| text.contains("secret")),
                "{texts:?}"
            );
        }
        let useful = "The database (default) does not exist for project p";
        let error = of_read(&Status::not_found(useful));
        assert!(error.source().unwrap().to_string().contains(useful));
    }
}
