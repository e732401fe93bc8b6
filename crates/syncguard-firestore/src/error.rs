//! The one mapping from Firestore's errors to [`LockError`].

use std::error::Error;

use gcloud_sdk::error::ErrorKind;
use syncguard_core::{ErrorCode, LockError};
use tonic::{Code, Status};

/// Marks of a text that names a document, and so a key. Firestore and its emulator escape names in
/// several ways, so a search for the key itself would miss them.
const DOCUMENT_MARKS: [&str; 5] = ["documents/", "path=", "path <", "Resource id", "Element"];

/// A read that failed.
pub(crate) fn of_read(status: &Status) -> LockError {
    let error = LockError::new(code(status), "the request to Firestore failed");
    error.with_source(presentable(status))
}

/// A commit that failed for another reason than a [state that moved](state_moved).
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
    LockError::new(ErrorCode::ServiceUnavailable, message).with_source(presentable(status))
}

/// A connection that could not be made.
pub(crate) fn of_connecting(error: gcloud_sdk::error::Error) -> LockError {
    let message = "cannot connect to Firestore";
    LockError::new(code_of_client(error.kind()), message).with_source(error)
}

/// The status of a request that was not sent, because the deadline of its operation had passed.
pub(crate) fn past_deadline() -> Status {
    let mut status = Status::deadline_exceeded(NotSent.to_string());
    status.set_source(std::sync::Arc::new(NotSent));
    status
}

/// Whether Firestore refused a commit because a document has changed since it was read, or because a
/// transaction locks it. Nothing was applied; reading again shows the current state.
pub(crate) fn state_moved(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists | Code::NotFound
    )
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
    // Without credentials the request never left, nor did it past the deadline.
    undecided && client_error(status).is_none() && !is_unsent(status)
}

fn is_unsent(status: &Status) -> bool {
    status.source().is_some_and(<dyn Error>::is::<NotSent>)
}

fn code(status: &Status) -> ErrorCode {
    if let Some(kind) = client_error(status) {
        return code_of_client(kind);
    }
    match status.code() {
        Code::Unavailable
        | Code::Internal
        | Code::Aborted
        | Code::AlreadyExists
        | Code::Cancelled => ErrorCode::ServiceUnavailable,
        // The transport reports a broken connection as `Unknown`, with its error as the source.
        Code::Unknown if status.source().is_some() => ErrorCode::ServiceUnavailable,
        Code::DeadlineExceeded => ErrorCode::NetworkTimeout,
        Code::PermissionDenied | Code::Unauthenticated => ErrorCode::AuthFailed,
        Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound | Code::OutOfRange => {
            ErrorCode::InvalidArgument
        }
        Code::ResourceExhausted => ErrorCode::RateLimited,
        Code::Ok | Code::Unknown | Code::Unimplemented | Code::DataLoss => ErrorCode::Internal,
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

/// The error of the client itself, such as credentials that yield no token.
fn client_error(status: &Status) -> Option<&ErrorKind> {
    let mut link = status.source();
    while let Some(error) = link {
        if let Some(error) = error.downcast_ref::<gcloud_sdk::error::Error>() {
            return Some(error.kind());
        }
        // The middleware boxes it twice.
        if let Some(error) = error.downcast_ref::<Box<gcloud_sdk::error::Error>>() {
            return Some(error.kind());
        }
        link = error.source();
    }
    None
}

/// The status without what may quote a key: its metadata and binary details, and its message if
/// that names a document.
fn presentable(status: &Status) -> Status {
    let names_document = DOCUMENT_MARKS
        .iter()
        .any(|mark| status.message().contains(mark));
    let message = if names_document {
        "(redacted: it names a document)"
    } else {
        status.message()
    };
    let mut shown = Status::new(status.code(), message);
    if let Some(source) = status.source() {
        // Errors of the transport and of credentials name no document. Their text includes that of
        // their own sources.
        shown.set_source(std::sync::Arc::new(Cause(chain(source))));
    }
    shown
}

/// The request was not sent.
#[derive(Debug)]
struct NotSent;

impl std::fmt::Display for NotSent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the deadline passed before the request was sent")
    }
}

impl Error for NotSent {}

/// The text of an error and its sources.
#[derive(Debug)]
struct Cause(String);

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Cause {}

fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// gRPC code, error code, and whether a commit may have been applied.
    const TABLE: [(Code, ErrorCode, bool); 17] = [
        (Code::Ok, ErrorCode::Internal, false),
        (Code::Cancelled, ErrorCode::ServiceUnavailable, true),
        (Code::Unknown, ErrorCode::Internal, true),
        (Code::InvalidArgument, ErrorCode::InvalidArgument, false),
        (Code::DeadlineExceeded, ErrorCode::NetworkTimeout, true),
        (Code::NotFound, ErrorCode::InvalidArgument, false),
        (Code::AlreadyExists, ErrorCode::ServiceUnavailable, false),
        (Code::PermissionDenied, ErrorCode::AuthFailed, false),
        (Code::ResourceExhausted, ErrorCode::RateLimited, false),
        (Code::FailedPrecondition, ErrorCode::InvalidArgument, false),
        (Code::Aborted, ErrorCode::ServiceUnavailable, false),
        (Code::OutOfRange, ErrorCode::InvalidArgument, false),
        (Code::Unimplemented, ErrorCode::Internal, false),
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
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
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
