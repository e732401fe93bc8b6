//! The report as a page to publish.

use maud::{DOCTYPE, Markup, html};
use syncguard_conformance::{Mutants, Status, cases};

use super::{Column, Matrix};

const STYLE: &str = "body { font: 14px sans-serif; margin: 2em auto; max-width: 80em } \
    table { border-collapse: collapse } th, td { text-align: left; padding: 2px 8px } \
    tr:nth-child(even) { background: #f5f5f5 } thead { position: sticky; top: 0; background: #fff } \
    .passed { color: #2c7a3f } .failed { color: #fff; background: #c0392b } .skipped { color: #8a6d00 }";

/// The results of the suite, on one page without further files.
pub(super) fn page(matrix: &Matrix) -> String {
    let rows = cases().into_iter().filter(|case| {
        let mut columns = matrix.iter().map(|(_, column)| column);
        columns.any(|column| column.case(case.name).is_some())
    });
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "SyncGuard conformance" }
                style { (STYLE) }
            }
            body {
                h1 { "SyncGuard conformance" }
                @for (backend, column) in matrix {
                    h2 { (backend.name) }
                    (summary(column))
                }
                h2 { "Cases" }
                table {
                    thead {
                        tr {
                            th { "case" }
                            th { "proves" }
                            @for (backend, _) in matrix { th { (backend.name) } }
                        }
                    }
                    @for case in rows {
                        tr {
                            td { code { (case.name) } }
                            td { (case.clauses.join(" ")) }
                            @for (_, column) in matrix { (cell(column, case.name)) }
                        }
                    }
                }
            }
        }
    };
    page.into_string()
}

fn summary(column: &Column) -> Markup {
    html! {
        p {
            (column.tally()) "; " (column.proven.len()) " clauses proven"
            @if !column.unproven.is_empty() { "; not proven: " (column.unproven.join(" ")) }
            @if let Some(Mutants { caught, known, .. }) = &column.mutants {
                "; " (caught) " of " (known) " known faults would have been detected"
            }
        }
        @if let Some(error) = &column.error { p.failed { (error) } }
        @for case in column.cases.iter().filter(|case| case.status == Status::Skipped) {
            p {
                "Not run: " code { (case.name) } ": " (case.detail.as_deref().unwrap_or_default())
                @if !case.leaves_open.is_empty() {
                    ". Known faults that it detects: " (case.leaves_open.join("; ")) "."
                }
            }
        }
        @for cause in &column.causes {
            p { b { "Probably broken: " (cause.clause) } " " (cause.text) }
            ul {
                @for name in &cause.cases {
                    @let detail = column.case(name).and_then(|case| case.detail.as_deref());
                    li { code { (name) } ": " (detail.unwrap_or_default()) }
                }
            }
        }
    }
}

fn cell(column: &Column, name: &str) -> Markup {
    html! {
        @match column.case(name) {
            Some(case) => td class=(case.status) title=[case.detail.as_deref()] {
                (case.status)
                @if case.status != Status::Skipped { " " (case.ms) " ms" }
            },
            None => td { "-" },
        }
    }
}
