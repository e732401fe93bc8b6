//! What the driver logs. A binary of its own, since a process has one logger.

use std::sync::Mutex;
use std::time::Duration;

use syncguard_core::Locks;
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{RedisServer, texts};

const KEY: &str = "customer:4711";

/// What was logged, by the driver too.
struct Log(Mutex<String>);

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}\n", record.target(), record.args());
        self.0.lock().unwrap().push_str(&line);
    }

    fn flush(&self) {}
}

#[tokio::test]
async fn no_password_is_in_a_text_and_no_password_key_or_lock_id_in_a_log() {
    static LOG: Log = Log(Mutex::new(String::new()));
    log::set_logger(&LOG).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let (encoded, decoded) = ("pass%20w%40rd%2F%23", "pass w@rd/#");
    let no_password = |text: &str| {
        for secret in [encoded, decoded] {
            assert!(!text.contains(secret), "{text}");
        }
    };
    let server = RedisServer::start_with(&["--requirepass", decoded]).unwrap();
    let port = server.port();
    for url in [
        format!("redis://nobody:{encoded}@127.0.0.1:{port}"),
        format!("redis://:{encoded}x@127.0.0.1:{port}"),
        format!("redis://:{encoded}@127.0.0.1:1"),
        format!("redis://:{encoded}@host:port"),
        format!("redis://:{encoded}@127.0.0.1:{port}/{encoded}"),
        format!("redis://:{encoded}@127.0.0.1:{port}/99"),
        format!("redis://:{encoded}%FF@127.0.0.1:{port}"),
        format!("redis-sentinel://:{encoded}@127.0.0.1:{port}?sentinelServiceName=locks"),
        format!("redis-cluster://:{encoded}@127.0.0.1:{port}"),
        format!("redis://{decoded}"),
        decoded.to_owned(),
    ] {
        let options = RedisOptions::new().timeout(Duration::from_secs(2));
        let error = RedisBackend::connect_with(&url, options).await.unwrap_err();
        no_password(&texts(&error));
    }
    let url = format!("redis://:{encoded}@127.0.0.1:{port}/3");
    let backend = RedisBackend::connect(&url).await.unwrap();
    no_password(&format!("{backend:?} {backend:#?}"));
    let locks = Locks::new(backend);
    let guard = locks.lock(KEY).await.unwrap();
    let id = guard.lock_id().as_str().to_owned();
    no_password(&format!("{locks:?} {locks:#?} {guard:?}"));
    assert!(guard.release().await.unwrap().is_released());
    let log = LOG.0.lock().unwrap().clone();
    assert!(log.contains("fred"), "the driver does log: {log}");
    no_password(&log);
    assert!(!log.contains(KEY) && !log.contains(&id), "{log}");
}
