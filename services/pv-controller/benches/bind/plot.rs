//! A small picture of curves over a logarithmic axis.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 190.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#d1495b", "#3a7d44", "#7a7a7a", "#c58b00", "#6a4c93"];

/// The curves as SVG.
pub fn svg(title: &str, x_name: &str, y_name: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let (low, high) = points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
    let top = points().fold(1.0_f64, |top, (_, y)| top.max(*y)) * 1.1;
    let span = (high / low).log10().max(0.1);
    let x_at = |x: f64| LEFT + (x / low).log10() / span * (WIDTH - LEFT - RIGHT);
    let y_at = |y: f64| HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - TOP);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>\n"
    );
    for n in 0..=4 {
        let y = top * f64::from(n) / 4.0;
        let at = y_at(y);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{y:.0}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
    }
    let mut ticks: Vec<f64> = points().map(|(x, _)| *x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for x in ticks {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{x}</text>",
            x_at(x),
            HEIGHT - BOTTOM + 18.0
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{x_name}</text><text x=\"12\" y=\"{TOP}\">{y_name}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0
    );
    for (n, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_at(*x), y_at(*y))).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for point in &path {
            let (x, y) = point.split_once(',').unwrap_or_default();
            let _ = writeln!(text, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let at = TOP + 20.0 * (n as f64 + 1.0);
        let _ = writeln!(text, "<text x=\"{}\" y=\"{at}\" fill=\"{colour}\">{name}</text>", WIDTH - RIGHT + 14.0);
    }
    text.push_str("</svg>\n");
    text
}
