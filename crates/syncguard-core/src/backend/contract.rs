//! The contract's clauses as data, read from the page that documents them.

/// One numbered clause of the [contract](crate::backend::LockBackend#contract).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clause {
    /// Its number, such as `A2`.
    pub id: &'static str,
    /// Its first line.
    pub text: &'static str,
}

/// All clauses of the [contract](crate::backend::LockBackend#contract), in order.
#[must_use]
pub fn clauses() -> Vec<Clause> {
    include_str!("contract.md")
        .lines()
        .filter_map(|line| line.strip_prefix("- **")?.split_once("** "))
        .map(|(id, text)| Clause { id, text })
        .collect()
}
