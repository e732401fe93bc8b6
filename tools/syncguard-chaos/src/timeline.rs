//! A [`Violation`] as a picture: clients as rows, calls as bars.

use std::collections::BTreeSet;

use svg::Document;
use svg::node::element::{Group, Line, Rectangle, Text, Title};

use crate::checker::{Violation, millis};
use crate::history::{Call, History, Response};

const WIDTH: f64 = 1_200.0;
/// Where the calls begin, right of the clients' names.
const LEFT: f64 = 90.0;
const TOP: f64 = 60.0;
const ROW: f64 = 44.0;
const BAR: f64 = 16.0;
/// The lease that a call was granted, below its bar.
const LEASE: f64 = 5.0;
const NARROWEST: f64 = 2.0;

const CALL: &str = "#7a9cc6";
const UNKNOWN: &str = "#c9c9c9";
const OFFENDING: &str = "#d1373f";
const LEASED: &str = "#5aa469";

impl Violation {
    /// Draws the violation as SVG.
    ///
    /// A row for each client, a bar for each call, and below a bar the lease that it was granted, up to the
    /// last call. The impossible call is red; calls of unknown outcome are grey and end with the picture.
    /// Each bar's title has the operation, its outcome and its times.
    #[must_use]
    pub fn timeline(&self, history: &History) -> String {
        let scale = Scale::of(&self.window);
        let clients: BTreeSet<_> = self.window.iter().map(|call| call.client).collect();
        let height = clients.iter().fold(TOP + 10.0, |height, _| height + ROW);
        let mut picture = Document::new()
            .set("viewBox", (0.0, 0.0, WIDTH, height))
            .set("font-family", "sans-serif")
            .set("font-size", 12)
            .add(text(
                10.0,
                20.0,
                format!("key {}: {}", self.key, self.reason),
            ))
            .add(text(LEFT, TOP - 14.0, "0 ms"))
            .add(
                text(
                    WIDTH - 10.0,
                    TOP - 14.0,
                    format!("{} ms", millis(scale.span_us)),
                )
                .set("text-anchor", "end"),
            );
        let mut y = TOP;
        for client in clients {
            picture = picture
                .add(text(10.0, y + BAR - 4.0, format!("client {client}")))
                .add(
                    Line::new()
                        .set("x1", LEFT)
                        .set("x2", WIDTH - 10.0)
                        .set("y1", y + ROW - 10.0)
                        .set("y2", y + ROW - 10.0)
                        .set("stroke", "#e5e5e5"),
                );
            let calls = self.window.iter().enumerate();
            for (index, call) in calls.filter(|(_, call)| call.client == client) {
                let is_last = index + 1 == self.window.len();
                picture = picture.add(scale.bar(call, y, is_last, history));
            }
            y += ROW;
        }
        picture.to_string()
    }
}

struct Scale {
    start_us: i64,
    span_us: i64,
}

impl Scale {
    fn of(window: &[Call]) -> Self {
        let ends = |call: &Call| call.returned_us.unwrap_or(call.invoked_us);
        let start_us = window.iter().map(|call| call.invoked_us).min().unwrap_or(0);
        let end_us = window.iter().map(ends).max().unwrap_or(0);
        Self {
            start_us,
            span_us: (end_us - start_us).max(1),
        }
    }

    fn x(&self, us: i64) -> f64 {
        let share = seconds(us - self.start_us) / seconds(self.span_us);
        LEFT + (WIDTH - 10.0 - LEFT) * share.clamp(0.0, 1.0)
    }

    fn bar(&self, call: &Call, y: f64, offends: bool, history: &History) -> Group {
        let ends_us = call.returned_us.unwrap_or(i64::MAX / 2);
        let color = match call.response {
            _ if offends => OFFENDING,
            Response::Unknown => UNKNOWN,
            _ => CALL,
        };
        let when = format!(
            "{} - {}",
            millis(call.invoked_us - self.start_us),
            call.returned_us
                .map_or_else(|| "never".to_owned(), |us| millis(us - self.start_us))
        );
        let said = format!("{}: {} ({when} ms)", call.invocation, call.response);
        let group = Group::new().add(Title::new(said)).add(
            self.span(call.invoked_us, ends_us, y, BAR)
                .set("fill", color),
        );
        match call.response {
            Response::Granted { expires_at_ms, .. } | Response::Extended { expires_at_ms } => {
                let until_us = expires_at_ms * 1_000 - history.clock_offset_us;
                let lease = self.span(ends_us, until_us, y + BAR + 2.0, LEASE);
                group.add(lease.set("fill", LEASED))
            }
            _ => group,
        }
    }

    fn span(&self, from_us: i64, to_us: i64, y: f64, height: f64) -> Rectangle {
        let from = self.x(from_us);
        Rectangle::new()
            .set("x", from)
            .set("y", y)
            .set("width", (self.x(to_us) - from).max(NARROWEST))
            .set("height", height)
    }
}

fn text(x: f64, y: f64, content: impl Into<String>) -> Text {
    Text::new(content).set("x", x).set("y", y)
}

#[expect(clippy::cast_precision_loss, reason = "for a picture")]
fn seconds(us: i64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use crate::history::Invocation;

    #[test]
    fn a_second_grant_is_marked_on_the_row_of_its_client() {
        let granted = |client, invoked_us, fence| Call {
            client,
            invoked_us,
            returned_us: Some(invoked_us + 900),
            key: "a<b".into(),
            invocation: Invocation::Acquire {
                id: format!("id-{client}"),
                ttl_ms: 1_000,
            },
            response: Response::Granted {
                fence,
                expires_at_ms: invoked_us / 1_000 + 1_000,
            },
        };
        let history = History {
            calls: vec![granted(1, 5_000, 1), granted(2, 9_000, 2)],
            ..History::default()
        };
        let violations = check(&history);
        let picture = violations[0].timeline(&history);
        assert_eq!(picture.matches(OFFENDING).count(), 1, "{picture}");
        let (before, after) = picture.split_once(OFFENDING).unwrap();
        assert!(before.contains("client 1") && before.contains("client 2"));
        assert!(before.contains("acquire id-2") && !after.contains("acquire id-"));
        assert_eq!(picture.matches(LEASED).count(), 2, "{picture}");
        assert!(picture.contains("a&lt;b") && !picture.contains("a<b"));
    }
}
