use std::error::Error as _;

use ErrorCode::{
    AuthFailed, Internal, InvalidArgument, NetworkTimeout, RateLimited, ServiceUnavailable,
};

use super::*;

#[test]
fn every_reply_has_its_code_and_was_not_applied() {
    for (expected, reply) in [
        (
            ServiceUnavailable,
            "LOADING Redis is loading the dataset in memory",
        ),
        (
            ServiceUnavailable,
            "READONLY You can't write against a read only replica.",
        ),
        (
            ServiceUnavailable,
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ),
        (
            ServiceUnavailable,
            "TRYAGAIN Multiple keys request during rehashing of slot",
        ),
        (ServiceUnavailable, "MOVED 3999 127.0.0.1:6381"),
        (
            ServiceUnavailable,
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        ),
        (
            ServiceUnavailable,
            "NOREPLICAS Not enough good replicas to write.",
        ),
        (
            ServiceUnavailable,
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ),
        (
            ServiceUnavailable,
            "NOSCRIPT No matching script. Please use EVAL.",
        ),
        (AuthFailed, "NOAUTH Authentication required."),
        (
            AuthFailed,
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        ),
        (
            AuthFailed,
            "WRONGPASS invalid username-password pair or user is disabled.",
        ),
        (
            AuthFailed,
            "NOPERM this user has no permissions to run the 'evalsha' command",
        ),
        (
            InvalidArgument,
            "WRONGTYPE Operation against a key holding the wrong kind of value script: abc, on @user_script:5.",
        ),
        (
            InvalidArgument,
            "CROSSSLOT Keys in request don't hash to the same slot",
        ),
        (InvalidArgument, "ERR syntax error"),
        (InvalidArgument, "INVALID request"),
        (InvalidArgument, "ERR DB index is out of range"),
        (ServiceUnavailable, "ERR unknown command 'EVALSHA'"),
        (
            InvalidArgument,
            "ERR value is not an integer or out of range script: abc, on @user_script:5.",
        ),
        (
            RateLimited,
            "OOM command not allowed when used memory > 'maxmemory'. script: abc, on @user_script:39.",
        ),
        (RateLimited, "ERR max number of clients reached"),
        (
            InvalidArgument,
            "ERR Error running script (call to f_abc): @user_script:12: WRONGTYPE Operation against a key",
        ),
        (
            RateLimited,
            "ERR Error running script (call to f_abc): @user_script:12: @user_script: 12: -OOM command not allowed when used memory > 'maxmemory'.",
        ),
        (
            ServiceUnavailable,
            "ERR Error running script: @user_script: 12: -READONLY You can't write against a read only replica.",
        ),
        (Internal, "ERR increment or decrement would overflow"),
    ] {
        let error = write_error(&Error::new(ErrorKind::Unknown, reply));
        assert_eq!(error.code(), expected, "{reply}");
        assert!(!error.outcome_unknown(), "{reply}");
        assert!(
            error
                .source()
                .is_some_and(<dyn std::error::Error>::is::<Error>)
        );
    }
}

#[test]
fn what_can_fail_in_the_middle_of_a_script_has_an_unknown_outcome() {
    for (expected, reply) in [
        (
            AuthFailed,
            "ERR The user executing the script can't run this command or subcommand script: abc",
        ),
        (
            AuthFailed,
            "ERR The user executing the script can't access at least one of the keys mentioned",
        ),
        (
            AuthFailed,
            "@user_script: 22: The user executing the script can't access at least one of the keys mentioned",
        ),
        (
            AuthFailed,
            "ERR ACL failure in script: User x has no permissions to run the 'set' command script: abc",
        ),
        (
            AuthFailed,
            "ERR ACL failure in script: No permissions to access a key script: abc",
        ),
        (
            Internal,
            "ERR Error running script (call to f_abc): @user_script:3: attempt to index a nil value",
        ),
        (Internal, "ERR something new"),
    ] {
        let error = write_error(&Error::new(ErrorKind::Unknown, reply));
        assert_eq!(error.code(), expected, "{reply}");
        assert!(error.outcome_unknown(), "{reply}");
    }
}

#[test]
fn a_cluster_that_goes_down_leaves_what_was_in_flight_unknown() {
    let error = write_error(&Error::new(
        ErrorKind::Cluster,
        "CLUSTERDOWN The cluster is down",
    ));
    assert_eq!(error.code(), ServiceUnavailable);
    assert!(error.outcome_unknown());
}

#[test]
fn every_kind_of_the_driver_has_its_code() {
    for (expected, unknown, kind) in [
        (ServiceUnavailable, false, ErrorKind::Canceled),
        (ServiceUnavailable, true, ErrorKind::IO),
        (ServiceUnavailable, true, ErrorKind::Routing),
        (ServiceUnavailable, true, ErrorKind::Cluster),
        (ServiceUnavailable, true, ErrorKind::Sentinel),
        (ServiceUnavailable, true, ErrorKind::Unknown),
        (NetworkTimeout, true, ErrorKind::Timeout),
        (RateLimited, false, ErrorKind::Backpressure),
        (AuthFailed, false, ErrorKind::Auth),
        (InvalidArgument, false, ErrorKind::Url),
        (InvalidArgument, false, ErrorKind::Config),
        (InvalidArgument, false, ErrorKind::InvalidArgument),
        (InvalidArgument, false, ErrorKind::InvalidCommand),
        (ServiceUnavailable, true, ErrorKind::Protocol),
        (ServiceUnavailable, true, ErrorKind::Parse),
        (ServiceUnavailable, true, ErrorKind::NotFound),
    ] {
        let name = format!("{kind:?}");
        let error = write_error(&Error::new(kind, "Something went wrong."));
        assert_eq!(error.code(), expected, "{name}");
        assert_eq!(error.outcome_unknown(), unknown, "{name}");
    }
}

#[test]
fn connecting_has_a_known_outcome() {
    let error = connect_error(&Error::new(ErrorKind::IO, "Connection refused"));
    assert_eq!(error.code(), ServiceUnavailable);
    assert!(!error.outcome_unknown());
    assert_eq!(error.operation(), Some(Operation::Setup));
}

#[test]
fn reads_have_a_known_outcome() {
    for kind in [ErrorKind::Timeout, ErrorKind::IO, ErrorKind::Unknown] {
        let error = Error::new(kind, "Something went wrong.");
        let (written, read) = (write_error(&error), read_error(&error));
        assert!(written.outcome_unknown() && !read.outcome_unknown());
        assert_eq!(written.code(), read.code());
    }
}

#[test]
fn what_was_never_sent_has_a_known_outcome() {
    for (expected, error) in [
        (Internal, CommandError::NO_RUNTIME),
        (NetworkTimeout, CommandError::PAST_DEADLINE),
        (ServiceUnavailable, CommandError::BACKEND_CLOSED),
        (InvalidArgument, CommandError::CONNECTION_ENDED),
        (
            InvalidArgument,
            CommandError::from(Error::new(ErrorKind::Unknown, NOT_QUEUED[0])),
        ),
        (InvalidArgument, CommandError::EMPTY_POOL),
    ] {
        for error in [error.of_write(), error.of_read()] {
            assert_eq!(error.code(), expected, "{error}");
            assert!(!error.outcome_unknown(), "{error}");
        }
    }
}

#[test]
fn arguments_that_redis_quotes_are_not_shown() {
    let reply = "ERR unknown command 'EVALSHA', with args beginning with: 'abc' '3' 'syncguard:sec";
    let error = write_error(&Error::new(ErrorKind::Unknown, reply));
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("unknown command"), "{shown}");
    assert!(!shown.contains("syncguard:sec"), "{shown}");
}

#[test]
fn arguments_that_redis_quotes_do_not_choose_the_code() {
    for key in ["@user_script:12: OOM x", "not an integer"] {
        let reply =
            format!("ERR unknown command 'EVALSHA', with args beginning with: 'abc' '1' '{key}'");
        let error = write_error(&Error::new(ErrorKind::Unknown, reply));
        assert_eq!(error.code(), ServiceUnavailable, "{key}");
    }
}
