//! `syncguard doctor`: the preflight of a store, in a terminal.

use serde_json::json;
use syncguard_core::{Finding, Severity};

use crate::exit::{self, Failure};
use crate::output::{Output, coloured};
use crate::store::{Purpose, Store};

/// Calls that findings advise, and what does the same here.
const CALLS: [(&str, &str); 6] = [
    (
        "`PostgresOptions::transaction_pooler(true)`",
        "`--transaction-pooler`",
    ),
    (
        "`PostgresOptions::transaction_pooler`",
        "`--transaction-pooler`",
    ),
    ("`FirestoreOptions::server_time(true)`", "`--server-time`"),
    (
        "`PostgresBackend::setup_schema`",
        "`syncguard run` or `syncguard acquire`",
    ),
    (
        "`SqliteBackend::setup_schema`",
        "`syncguard run` or `syncguard acquire`",
    ),
    ("`purge_expired`", "`syncguard purge`"),
];

pub(crate) async fn doctor(store: &Store, output: Output) -> Result<u8, Failure> {
    let locks = store.open(Purpose::Look).await?;
    let findings = locks.preflight().await?;
    let findings: Vec<_> = findings.iter().map(for_a_shell).collect();
    let value = json!({
        "store": store.to_string(),
        "findings": findings,
        "errors": count(&findings, Severity::Error),
        "warnings": count(&findings, Severity::Warning),
    });
    output.result(&format!("{store}\n{}", report(&findings)), &value)?;
    match count(&findings, Severity::Error) {
        0 => Ok(0),
        _ => Ok(exit::NO),
    }
}

/// The same finding. Where its advice is a call of a program, the option or command for it stands before that.
fn for_a_shell(finding: &Finding) -> Finding {
    let fix = CALLS
        .iter()
        .fold(finding.fix().to_owned(), |fix, (call, here)| {
            fix.replace(call, &format!("{here} (in Rust {call})"))
        });
    let found = finding.found().to_owned();
    Finding::new(finding.severity(), finding.code(), found, fix)
}

fn report(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let colour = match finding.severity() {
            Severity::Error => 31,
            Severity::Warning => 33,
            _ => 36,
        };
        text += &format!(
            "  {} [{}]\n    {}\n    fix: {}\n",
            coloured(finding.severity().as_str(), colour),
            finding.code(),
            finding.found(),
            finding.fix()
        );
    }
    let errors = count(findings, Severity::Error);
    let warnings = count(findings, Severity::Warning);
    text += &match (errors, warnings) {
        (0, 0) => "  in order".to_owned(),
        _ => format!("  errors: {errors}, warnings: {warnings}"),
    };
    text
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    let of_it = findings.iter().filter(|f| f.severity() == severity);
    of_it.count()
}
