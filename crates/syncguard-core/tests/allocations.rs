//! What is computed for every operation allocates no more than its result. In a binary of its own:
//! it counts allocations.

use std::future::IntoFuture as _;
use std::hint::black_box;
use std::io::Write as _;
use std::time::Duration;

use allocation_counter::measure;
use syncguard_core::backend::{make_fence_key, make_storage_key};
use syncguard_core::{Fence, LockId, LockKey, Locks, Ttl, hash_key};
use syncguard_memory::MemoryBackend;

fn allocations<T>(work: impl Fn() -> T) -> u64 {
    measure(|| {
        black_box(work());
    })
    .count_total
}

#[test]
fn ids_ttls_fences_and_hashes_allocate_nothing() {
    let fence = Fence::from_counter(4711).unwrap();
    assert_eq!(allocations(|| LockId::generate().unwrap()), 0);
    assert_eq!(
        allocations(|| LockId::parse("AAAAAAAAAAAAAAAAAAAAA_").unwrap()),
        0
    );
    assert_eq!(
        allocations(|| Ttl::new(Duration::from_secs(30)).unwrap()),
        0
    );
    assert_eq!(
        allocations(|| "000000000004711".parse::<Fence>().unwrap()),
        0
    );
    assert_eq!(allocations(|| hash_key("customer:4711:invoices")), 0);
    let written = || {
        let mut text = [0_u8; 15];
        write!(&mut text[..], "{fence}").unwrap();
        text
    };
    assert_eq!(written(), *b"000000000004711");
    assert_eq!(allocations(written), 0);
}

#[test]
fn a_key_and_its_names_are_one_allocation_each() {
    let key = || LockKey::new("customer:4711:invoices").unwrap();
    assert_eq!(allocations(key), 1);
    let key = key();
    assert_eq!(allocations(|| key.clone()), 0);
    let name = || make_storage_key("syncguard", key.as_str(), 1000, 26).unwrap();
    assert_eq!(allocations(name), 1);
    let name = name();
    // The text that is named, and its name.
    assert_eq!(
        allocations(|| make_fence_key("syncguard", &name, 1000, 26).unwrap()),
        2
    );
}

/// The thread caches of glibc's `malloc` hold blocks of this size at most. Larger ones take much longer.
#[tokio::test]
async fn what_is_awaited_for_a_lock_and_its_release_is_small() {
    const CACHED_BYTES: u64 = 1_032;
    let locks = Locks::new(MemoryBackend::default());
    let key = LockKey::new("k").unwrap();
    let mut attempt = None;
    let made = measure(|| attempt = Some(locks.try_lock(&key).into_future()));
    assert_eq!(made.count_total, 1);
    assert!(
        made.bytes_total <= CACHED_BYTES,
        "{} bytes",
        made.bytes_total
    );
    let guard = attempt.unwrap().await.unwrap().unwrap();
    let mut release = None;
    let made = measure(|| release = Some(guard.release()));
    assert_eq!(made.count_total, 1);
    assert!(
        made.bytes_total <= CACHED_BYTES,
        "{} bytes",
        made.bytes_total
    );
    assert!(release.unwrap().await.unwrap().is_released());
}
