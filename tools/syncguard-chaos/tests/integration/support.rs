//! Histories, written by hand. Times are milliseconds, for clients and store alike.

use std::ops::Range;

use syncguard_chaos::{Call, History, Invocation, Response};

pub(crate) const KEY: &str = "k";

#[derive(Default, Clone)]
pub(crate) struct Script(pub(crate) History);

/// A history under construction: each call is made and returns in a span of time.
pub(crate) fn script() -> Script {
    Script::default()
}

impl Script {
    pub(crate) fn call(
        mut self,
        span: Range<i64>,
        invocation: Invocation,
        response: Response,
    ) -> Self {
        let id = invocation.id().unwrap_or("reader");
        let client = id.bytes().map(u32::from).sum();
        self.0.calls.push(Call {
            client,
            invoked_us: span.start * 1_000,
            returned_us: Some(span.end * 1_000),
            key: KEY.into(),
            invocation,
            response,
        });
        self
    }

    /// Granted at `at`, for `ttl_ms`.
    pub(crate) fn granted(
        self,
        span: Range<i64>,
        id: &str,
        fence: u64,
        at: i64,
        ttl_ms: i64,
    ) -> Self {
        let expires_at_ms = at + ttl_ms;
        let response = Response::Granted {
            fence,
            expires_at_ms,
        };
        self.call(span, acquire(id, ttl_ms), response)
    }

    pub(crate) fn locked(self, span: Range<i64>, id: &str) -> Self {
        self.call(span, acquire(id, 1_000), Response::Locked)
    }

    pub(crate) fn lost_acquire(self, span: Range<i64>, id: &str, ttl_ms: i64) -> Self {
        self.call(span, acquire(id, ttl_ms), Response::Unknown)
    }

    pub(crate) fn released(self, span: Range<i64>, id: &str) -> Self {
        self.call(span, release(id), Response::Released)
    }

    pub(crate) fn release_not_held(self, span: Range<i64>, id: &str) -> Self {
        self.call(span, release(id), Response::NotHeld)
    }

    pub(crate) fn lost_release(self, span: Range<i64>, id: &str) -> Self {
        self.call(span, release(id), Response::Unknown)
    }

    pub(crate) fn extended(self, span: Range<i64>, id: &str, at: i64, ttl_ms: i64) -> Self {
        let response = Response::Extended {
            expires_at_ms: at + ttl_ms,
        };
        self.call(span, extend(id, ttl_ms), response)
    }

    pub(crate) fn extend_not_held(self, span: Range<i64>, id: &str) -> Self {
        self.call(span, extend(id, 1_000), Response::NotHeld)
    }

    pub(crate) fn lost_extend(self, span: Range<i64>, id: &str, ttl_ms: i64) -> Self {
        self.call(span, extend(id, ttl_ms), Response::Unknown)
    }

    pub(crate) fn found(self, span: Range<i64>, id: &str, fence: u64, lease: Range<i64>) -> Self {
        self.call(span, Invocation::LookupByKey, found(KEY, id, fence, lease))
    }

    pub(crate) fn free(self, span: Range<i64>) -> Self {
        self.call(span, Invocation::LookupByKey, Response::Free)
    }

    /// Uneventful use of the key, `cycles` times, 10 ms each.
    pub(crate) fn quiet(mut self, from: i64, first_fence: u64, cycles: u64) -> Self {
        for cycle in 0..cycles {
            let id = format!("quiet-{}", first_fence + cycle);
            let at = from + 10 * i64::try_from(cycle).unwrap();
            self = self
                .granted(at..at + 2, &id, first_fence + cycle, at + 1, 5_000)
                .locked(at + 2..at + 4, "other")
                .extended(at + 4..at + 5, &id, at + 4, 6_000)
                .found(at + 5..at + 6, &id, first_fence + cycle, at + 1..at + 6_004)
                .released(at + 6..at + 8, &id);
        }
        self
    }
}

pub(crate) fn acquire(id: &str, ttl_ms: i64) -> Invocation {
    Invocation::Acquire {
        id: id.into(),
        ttl_ms,
    }
}

pub(crate) fn release(id: &str) -> Invocation {
    Invocation::Release { id: id.into() }
}

pub(crate) fn extend(id: &str, ttl_ms: i64) -> Invocation {
    Invocation::Extend {
        id: id.into(),
        ttl_ms,
    }
}

pub(crate) fn lookup(id: &str) -> Invocation {
    Invocation::LookupById { id: id.into() }
}

pub(crate) fn found(key: &str, id: &str, fence: u64, lease: Range<i64>) -> Response {
    Response::Found {
        key: key.into(),
        id: id.into(),
        fence,
        acquired_at_ms: lease.start,
        expires_at_ms: lease.end,
    }
}
