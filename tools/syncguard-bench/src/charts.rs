//! Charts of a store's figures over the number of tasks, beside its limit.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;

use super::report::{Load, Measured, StoreReport};

const SIZE: (u32, u32) = (640, 400);
const OURS: RGBColor = RGBColor(31, 100, 180);
const LIMIT: RGBColor = RGBColor(130, 130, 130);

type Figure = fn(&Measured) -> Option<f64>;

/// Points: tasks and a figure.
type Points = Vec<(f64, f64)>;

/// Draws `STORE-OPERATION-rate.svg` and `-p50.svg`, `-p99.svg` of what was measured.
pub(crate) fn draw(report: &StoreReport, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let figures: [(&str, &str, Figure); 3] = [
        ("rate", "per second", |measured| measured.per_second),
        ("p50", "p50, µs", |measured| measured.latency?.p50_us),
        ("p99", "p99, µs", |measured| measured.latency?.p99_us),
    ];
    let operations: BTreeSet<_> = report.load.iter().map(|load| load.operation).collect();
    for operation in operations {
        for (name, unit, figure) in figures {
            let points = |side: fn(&Load) -> &Measured| -> Points {
                let loads = report.load.iter();
                let of_this = loads.filter(|load| load.operation == operation);
                let figures = of_this.filter_map(|load| Some((load.tasks, figure(side(load))?)));
                figures
                    .map(|(tasks, figure)| (f64::from(u32::try_from(tasks).unwrap_or(0)), figure))
                    .collect()
            };
            let lines = [
                ("SyncGuard", OURS, points(|load| &load.ours)),
                ("the limit", LIMIT, points(|load| &load.limit)),
            ];
            if lines[0].2.len() < 2 {
                continue;
            }
            let file = format!(
                "{}-{}-{name}.svg",
                report.store,
                operation.replace(' ', "-")
            );
            let title = format!("{}: {operation}, {unit}", report.store);
            chart(&folder.join(&file), &title, &lines)
                .map_err(|error| anyhow!("{error}"))
                .with_context(|| format!("cannot draw {file}"))?;
        }
    }
    Ok(())
}

fn chart(
    path: &Path,
    title: &str,
    lines: &[(&str, RGBColor, Points)],
) -> Result<(), Box<dyn std::error::Error>> {
    let most = |axis: fn(&(f64, f64)) -> f64| {
        let points = lines.iter().flat_map(|(_, _, points)| points);
        points.map(axis).fold(1.0, f64::max)
    };
    let (tasks, highest) = (most(|point| point.0), most(|point| point.1));
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
