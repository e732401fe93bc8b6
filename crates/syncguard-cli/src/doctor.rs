//! `syncguard doctor`: the preflight of a store, in a terminal.

use serde_json::json;
use syncguard_core::{Finding, Severity};

use crate::exit::{self, Failure};
use crate::output::{Output, coloured};
use crate::store::{Purpose, Store};

pub(crate) async fn doctor(store: &Store, output: Output) -> Result<u8, Failure> {
    let locks = store.open(Purpose::Look).await?;
    let findings = locks.preflight().await?;
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
