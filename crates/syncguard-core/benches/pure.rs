//! What is computed for every operation before anything is sent.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use syncguard_core::backend::{make_fence_key, make_storage_key};
use syncguard_core::{Fence, LockId, LockKey, Ttl, hash_key};

/// Redis's limits.
const LIMIT: usize = 1000;
const RESERVE: usize = 26;

/// Texts of the kinds that take different ways.
fn texts() -> [(&'static str, String); 4] {
    [
        ("short", "customer:4711:invoices".to_owned()),
        ("512 bytes", "customer".repeat(64)),
        ("composed", "kund\u{e9}:4711:\u{e9}t\u{e9}".to_owned()),
        (
            "decomposed",
            "kunde\u{301}:4711:e\u{301}te\u{301}".to_owned(),
        ),
    ]
}

fn keys(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("LockKey::new");
    for (kind, text) in texts() {
        group.bench_with_input(BenchmarkId::from_parameter(kind), &text, |bencher, text| {
            bencher.iter(|| LockKey::new(black_box(text)));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("hash_key");
    for (kind, text) in texts() {
        group.bench_with_input(BenchmarkId::from_parameter(kind), &text, |bencher, text| {
            bencher.iter(|| hash_key(black_box(text)));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("make_storage_key");
    let too_long = ("too long", "x".repeat(LIMIT));
    for (kind, text) in texts().into_iter().chain([too_long]) {
        group.bench_with_input(BenchmarkId::from_parameter(kind), &text, |bencher, text| {
            bencher.iter(|| make_storage_key("syncguard", black_box(text), LIMIT, RESERVE));
        });
    }
    group.finish();

    criterion.bench_function("make_fence_key", |bencher| {
        let stored = "syncguard:customer:4711:invoices";
        bencher.iter(|| make_fence_key("syncguard", black_box(stored), LIMIT, RESERVE));
    });
}

fn ids(criterion: &mut Criterion) {
    criterion.bench_function("LockId::generate", |bencher| bencher.iter(LockId::generate));
    criterion.bench_function("LockId::parse", |bencher| {
        bencher.iter(|| LockId::parse(black_box("AAAAAAAAAAAAAAAAAAAAA_")));
    });
}

fn values(criterion: &mut Criterion) {
    let fence = Fence::from_counter(4711).expect("a valid fence");
    criterion.bench_function("Fence to text", |bencher| {
        bencher.iter(|| black_box(fence).to_string());
    });
    criterion.bench_function("Fence from text", |bencher| {
        bencher.iter(|| black_box("000000000004711").parse::<Fence>());
    });
    criterion.bench_function("Ttl::new", |bencher| {
        bencher.iter(|| Ttl::new(black_box(Duration::from_secs(30))));
    });
}

criterion_group!(benches, keys, ids, values);
criterion_main!(benches);
