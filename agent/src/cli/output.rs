//! What every subcommand prints with: formats, pipes, colours, and figures in the units of the field (`Mi`, `m` for
//! thousandths of a core, `ms`).

use std::io::{self, Write as _};

use clap::ValueEnum;

/// How a subcommand prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For scripts
    Json,
}

/// Prints a text. A reader that has seen enough (`| head`) is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints a value as JSON for people and scripts.
pub(crate) fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Rows below their titles in left-aligned columns, two spaces between them, none at the end of a line.
pub(crate) fn table<const N: usize>(
    titles: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let titles = titles.map(str::to_owned);
    let rows: Vec<_> = std::iter::once(titles).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:width$}  "))
            .collect();
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

/// True where `stream` is a terminal and `NO_COLOR` is not set (<https://no-color.org>).
pub(crate) fn colours(stream: &impl io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Three significant digits with a binary unit: `0`, `512B`, `1.50Gi`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    match bytes {
        0 => return "0".to_owned(),
        1..1024 => return format!("{bytes}B"),
        _ => {}
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    // 999.5 already shows as four digits; the next unit takes over before that.
    while value >= 999.5 {
        let Some(next) = units.next() else { break };
        value /= 1024.0;
        unit = Some(next);
    }
    format!("{}{}", digits(value), unit.unwrap_or(&""))
}

/// A length of time: `0`, `850 ns`, `85.0 us`, `1.20 ms`, `3.50 s`.
pub(crate) fn nanos(nanos: u64) -> String {
    match nanos {
        0 => "0".to_owned(),
        1..1000 => format!("{nanos} ns"),
        1000..999_500 => format!("{} us", digits(nanos as f64 / 1e3)),
        999_500..999_500_000 => format!("{} ms", digits(nanos as f64 / 1e6)),
        _ => format!("{} s", digits(nanos as f64 / 1e9)),
    }
}

/// Thousandths of a core, as `kubectl top` shows them, from billionths; from 10 cores on in cores.
pub(crate) fn cores(nano_cores: u64) -> String {
    match nano_cores {
        0..10_000_000_000 => format!("{}m", (nano_cores + 500_000) / 1_000_000),
        _ => format!("{:.1}", nano_cores as f64 / 1e9),
    }
}

/// Milliseconds out of each second, from nanoseconds.
pub(crate) fn millis_per_second(nanos: u64) -> String {
    match nanos {
        0 => "0".to_owned(),
        n => digits_small(n as f64 / 1e6),
    }
}

/// The time of day to the millisecond, out of an RFC 3339 text; the text itself if it is none.
pub(crate) fn time_of_day(rfc3339: &str) -> &str {
    rfc3339.get(11..23).unwrap_or(rfc3339)
}

/// RFC 3339 to the millisecond; the text itself if it is none.
pub(crate) fn moment(rfc3339: &str) -> String {
    match rfc3339.parse::<jiff::Timestamp>() {
        Ok(time) => format!("{time:.3}"),
        Err(_) => rfc3339.to_owned(),
    }
}

/// Names of the signals that end processes; those that are rare go by number.
pub(crate) fn signal(number: i32) -> String {
    let name = match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}

/// `text` without what a terminal would obey: names come from processes and manifests.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// At most `most` characters of a text; one that is cut ends with `…`.
pub(crate) fn clipped(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(most.saturating_sub(1)).collect();
    if most > 0 {
        cut.push('…');
    }
    cut
}

/// Three significant digits of a value below 1000.
fn digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// At most one digit after the point, and what is not nothing does not show as nothing.
fn digits_small(value: f64) -> String {
    match value {
        v if v < 0.05 => "<0.1".to_owned(),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let text = table(
            ["NODE", "CPU", "X"],
            [["node-1", "5m", ""].map(str::to_owned)],
        );
        assert_eq!(text, "NODE    CPU  X\nnode-1  5m\n");
    }

    #[test]
    fn bytes_have_three_digits_and_a_binary_unit() {
        for (value, text) in [
            (0, "0"),
            (1, "1B"),
            (1023, "1023B"),
            (1024, "1.00Ki"),
            (1536 << 10, "1.50Mi"),
            (600 << 20, "600Mi"),
            ((1000 << 20), "0.98Gi"),
            (24 << 30, "24.0Gi"),
            (u64::MAX, "16.0Ei"),
        ] {
            assert_eq!(bytes(value), text, "{value}");
        }
    }

    #[test]
    fn lengths_of_time_pick_their_unit() {
        for (value, text) in [
            (0, "0"),
            (999, "999 ns"),
            (1000, "1.00 us"),
            (85_040, "85.0 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (61_000_000, "61.0 ms"),
            (3_500_000_000, "3.50 s"),
        ] {
            assert_eq!(nanos(value), text, "{value}");
        }
    }

    #[test]
    fn cores_and_shares_of_a_second() {
        assert_eq!(cores(0), "0m");
        assert_eq!(cores(250_400_000), "250m");
        assert_eq!(cores(12_500_000_000), "12.5");
        assert_eq!(millis_per_second(0), "0");
        assert_eq!(millis_per_second(10_000), "<0.1");
        assert_eq!(millis_per_second(12_340_000), "12.3");
        assert_eq!(millis_per_second(812_000_000), "812");
    }

    #[test]
    fn times_and_signals() {
        let time = "2026-11-21T08:57:48.123456Z";
        assert_eq!(time_of_day(time), "08:57:48.123");
        assert_eq!(time_of_day("never"), "never");
        assert_eq!(moment(time), "2026-11-21T08:57:48.123Z");
        assert_eq!(moment("never"), "never");
        assert_eq!(signal(9), "SIGKILL");
        assert_eq!(signal(64), "signal 64");
        assert_eq!(printable("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }
}
