//! The alert rules and the dashboard in `docs/monitoring` use metrics that are emitted, and all of them. The table of
//! alerts has all rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use syncguard_core::ErrorCode;
use syncguard_core::observe::Operation;

use super::KEY;
use super::sdk::{Instrument, Sdk};
use crate::common::{Fault, FaultyBackend, PATIENCE};

/// Emits every instrument with every attribute.
async fn emitted() -> Vec<Instrument> {
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let plain = faulty.locks();
    let locks = sdk.observe(plain.clone());
    faulty.report_skew(1);
    // A reclaim that releases, and one that gives up.
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    locks.try_lock(KEY).await.unwrap_err();
    let refused = Fault::Refuse(ErrorCode::InvalidArgument);
    faulty.plan(Operation::Release, [Fault::Pass, refused, refused]);
    locks.drain(PATIENCE).await.unwrap();
    let guard = locks.try_lock(KEY).await.unwrap().unwrap();
    let id = *guard.lock_id();
    guard.release().await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();
    assert!(plain.release(id).await.unwrap().is_released());
    // A wait that polls and fails, then a lost lock.
    let guard = locks.try_lock(KEY).await.unwrap().unwrap();
    assert!(plain.release(guard.lock_id()).await.unwrap().is_released());
    let other = plain.try_lock(KEY).await.unwrap().unwrap();
    let brief = Duration::from_millis(2);
    let polling = locks.lock(KEY).retry_delay(brief).max_retries(1);
    polling.await.unwrap_err();
    let _ = guard.release().await.unwrap();
    let _ = other.release().await.unwrap();
    sdk.instruments()
}

/// A metric's name in Prometheus: the unit in words, `_total` for a counter.
fn series(instrument: &Instrument) -> String {
    let mut name = instrument.name.replace('.', "_");
    if instrument.unit == "s" {
        name += "_seconds";
    }
    name + match instrument.kind {
        "counter" => "_total",
        "histogram" => "_bucket",
        _ => "",
    }
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All queries of the dashboard, those of its variables included.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == "expr" || name == "query" => found.push(text.to_owned()),
                    _ => queries(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

/// The queries of the alert rules.
fn alerts() -> Vec<String> {
    let text = read("../../docs/monitoring/alerts.yml");
    let rules = text.split("- alert:").skip(1);
    let query = |rule: &str| {
        let (_, query) = rule.split_once("expr:").expect("a rule has a query");
        let end = query.find("\n        labels:").expect("a rule has labels");
        query[..end].to_owned()
    };
    rules.map(query).collect()
}

fn dashboard() -> Vec<String> {
    let file = read("../../docs/monitoring/dashboard.json");
    let mut found = Vec::new();
    queries(&serde_json::from_str(&file).unwrap(), &mut found);
    found.retain(|query| query != "prometheus");
    found
}

/// Names of metrics and labels in a query, each with the values that it is compared with.
fn names(query: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names = BTreeMap::<_, BTreeSet<_>>::new();
    let mut rest = query;
    while let Some(start) = rest.find(is_name) {
        rest = &rest[start..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        if !name.starts_with("syncguard_") && name != "error_type" {
            continue;
        }
        let values = names.entry(name).or_default();
        let compared = after.trim_start_matches(['=', '!', '~']);
        if let Some((value, _)) = compared
            .strip_prefix('"')
            .and_then(|text| text.split_once('"'))
        {
            let literals = value.split('|').filter(|value| !value.is_empty());
            values.extend(literals.filter(|value| !value.starts_with('$')));
        }
    }
    names
}

#[tokio::test]
async fn alerts_and_dashboard_use_metrics_and_attributes_that_exist() {
    let emitted = emitted().await;
    let errors = [
        ErrorCode::ServiceUnavailable,
        ErrorCode::AuthFailed,
        ErrorCode::RateLimited,
        ErrorCode::NetworkTimeout,
        ErrorCode::Internal,
    ];
    let queries = [alerts(), dashboard()].concat();
    assert!(queries.len() > 20, "{queries:?}");
    for query in queries {
        let names = names(&query);
        let is_used = |it: &&Instrument| names.contains_key(series(it).as_str());
        let used: Vec<_> = emitted.iter().filter(is_used).collect();
        assert!(!used.is_empty(), "no metric that exists: {query}");
        for (name, values) in &names {
            if used.iter().any(|instrument| series(instrument) == *name) {
                continue;
            }
            let of = |it: &&&Instrument| it.values.keys().any(|key| key.replace('.', "_") == *name);
            assert!(
                used.iter().any(|it| of(&it)),
                "no metric has `{name}`: {query}"
            );
            for value in values {
                let was_emitted = used.iter().any(|it| {
                    let mut values = it.values.iter();
                    values
                        .any(|(key, seen)| key.replace('.', "_") == *name && seen.contains(*value))
                });
                let is_error = errors.iter().any(|code| code.as_str() == *value);
                let exists = was_emitted || (*name == "error_type" && is_error);
                assert!(exists, "`{name}` is never `{value}`: {query}");
            }
        }
    }
}

#[test]
fn the_table_of_alerts_has_every_rule_and_no_other() {
    let file = read("../../docs/monitoring/alerts.yml");
    let rules = file
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let page = read("../../docs/operations.md");
    let (_, table) = page
        .split_once("| alert | means | do |\n|---|---|---|\n")
        .unwrap();
    let rows = table
        .lines()
        .map_while(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.collect::<Vec<_>>(), rules.collect::<Vec<_>>());
}

#[tokio::test]
async fn every_metric_is_on_the_dashboard_and_in_the_documentation() {
    let emitted = emitted().await;
    let shown = dashboard().concat();
    let pages = [read("../../docs/operations.md"), read("src/options.rs")];
    let mut known = BTreeSet::new();
    for instrument in &emitted {
        let name = series(instrument);
        assert!(shown.contains(&name), "{name} is not on the dashboard");
        known.insert(instrument.name.clone());
        known.extend(instrument.values.keys().cloned());
    }
    for page in &pages {
        for name in &known {
            assert!(
                page.contains(&format!("`{name}`")),
                "{name} is not documented"
            );
        }
    }
    // `emitted` is complete: the source has no other name.
    let source = read("src/metrics.rs");
    let literals = source.split('"').skip(1).step_by(2);
    for literal in literals.filter(|literal| literal.starts_with("syncguard.")) {
        assert!(known.contains(literal), "the test does not emit {literal}");
    }
}
