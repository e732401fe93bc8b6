//! [`Table`]: a table in Markdown.

use std::fmt;

/// A table in Markdown, its columns aligned. Without rows it is nothing.
pub(crate) struct Table {
    head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            head: head.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return Ok(());
        }
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.head]);
            let lengths = cells.map(|row| row[column].chars().count());
            lengths.max().unwrap_or_default()
        };
        let widths: Vec<_> = (0..self.head.len()).map(width).collect();
        let line = |cells: &[String]| -> String {
            let padded = cells.iter().zip(&widths).enumerate();
            let padded = padded.map(|(column, (cell, width))| match column {
                0 => format!("| {cell:<width$} "),
                _ => format!("| {cell:>width$} "),
            });
            padded.collect::<String>() + "|"
        };
        writeln!(f, "{}", line(&self.head))?;
        let rules: Vec<_> = widths
            .iter()
            .enumerate()
            .map(|(column, width)| match column {
                0 => "-".repeat(*width),
                _ => "-".repeat(width - 1) + ":",
            })
            .collect();
        writeln!(f, "{}", line(&rules))?;
        for row in &self.rows {
            writeln!(f, "{}", line(row))?;
        }
        writeln!(f)
    }
}
