//! Charts of a store's figures over the number of tasks, beside its limit.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;

use super::figure::Figure;
use super::report::{Load, Measured, StoreReport};

const SIZE: (u32, u32) = (640, 400);
const OURS: RGBColor = RGBColor(31, 100, 180);
const LIMIT: RGBColor = RGBColor(130, 130, 130);

type Part = fn(&Measured) -> Option<Figure>;

/// Points: tasks and a figure.
type Points = Vec<(f64, f64)>;

/// Draws `STORE-OPERATION-rate.svg` and `-p50.svg`, `-p99.svg` of what was measured. A disturbed load has no
/// point; the title names it.
pub(crate) fn draw(report: &StoreReport, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let figures: [(&str, &str, Part); 3] = [
        ("rate", "per second", |measured| measured.per_second),
        ("p50", "p50, µs", |measured| measured.p50_us),
        ("p99", "p99, µs", |measured| measured.p99_us),
    ];
    let operations: BTreeSet<_> = report.load.iter().map(|load| load.operation).collect();
    for operation in operations {
        for (name, unit, figure) in figures {
            let loads = report.load.iter();
            let loads: Vec<_> = loads
                .filter(|load| load.operation == operation && figure(&load.ours).is_some())
                .collect();
            if loads.len() < 2 {
                continue;
            }
            let points = |side: fn(&Load) -> &Measured| -> Points {
                let sound = loads.iter().filter(|load| !load.is_disturbed());
                sound
                    .filter_map(|load| Some((tasks(load), figure(side(load))?.median)))
                    .collect()
            };
            let lines = [
                ("SyncGuard", OURS, points(|load| &load.ours)),
                ("the limit", LIMIT, points(|load| &load.limit)),
            ];
            let most = loads.iter().map(|load| tasks(load)).fold(1.0, f64::max);
            let file = format!(
                "{}-{}-{name}.svg",
                report.store,
                operation.replace(' ', "-")
            );
            let mut title = format!("{}: {operation}, {unit}", report.store);
            let disturbed = loads.iter().filter(|load| load.is_disturbed());
            let disturbed: Vec<_> = disturbed.map(|load| load.tasks.to_string()).collect();
            if !disturbed.is_empty() {
                title += &format!(" (disturbed: {} tasks)", disturbed.join(", "));
            }
            chart(&folder.join(&file), &title, most, &lines)
                .map_err(|error| anyhow!("{error}"))
                .with_context(|| format!("cannot draw {file}"))?;
        }
    }
    Ok(())
}

fn tasks(load: &Load) -> f64 {
    f64::from(u32::try_from(load.tasks).unwrap_or(0))
}

fn chart(
    path: &Path,
    title: &str,
    tasks: f64,
    lines: &[(&str, RGBColor, Points)],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = lines.iter().flat_map(|(_, _, points)| points);
    let highest = points.map(|point| point.1).fold(1.0, f64::max);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        // Room for the legend.
        .build_cartesian_2d((1.0..tasks).log_scale(), 0.0..highest * 1.35)?;
    chart
        .configure_mesh()
        .x_desc("tasks")
        .x_label_formatter(&|tasks| format!("{tasks:.0}"))
        .y_label_formatter(&|figure| format!("{figure:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (name, color, points) in lines {
        let color = *color;
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}
