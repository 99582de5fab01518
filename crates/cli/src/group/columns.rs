//! Tables of text, their columns aligned.

/// To which side the cells of a column are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Lays out `rows` below a line of titles.
pub(super) fn table<const N: usize>(titles: [(&str, Align); N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| printable(cell)))
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([titles[column].0.chars().count()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    let mut line = |cells: [&str; N]| {
        let mut line = String::new();
        for (index, cell) in cells.into_iter().enumerate() {
            let width = widths[index];
            line.push_str(&match titles[index].1 {
                Align::Left => format!("{cell:width$}  "),
                Align::Right => format!("{cell:>width$}  "),
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(titles.map(|(title, _)| title));
    for row in &rows {
        line(std::array::from_fn(|index| row[index].as_str()));
    }
    text
}

/// Others choose what their clients are called: it must not steer our terminal.
fn printable(cell: &str) -> String {
    let mut text = String::with_capacity(cell.len());
    for c in cell.chars() {
        match c {
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text
}

/// What is not there.
pub(super) const NONE: &str = "-";

/// A cell that may be empty.
pub(super) fn cell(value: Option<impl ToString>) -> String {
    value.map_or(NONE.to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let titles = [("NAME", Align::Left), ("N", Align::Right), ("LAST", Align::Left)];
        let rows = [
            ["é".to_owned(), "1,000".to_owned(), cell(None::<i64>)],
            ["a\tb\u{1b}[2J".to_owned(), "7".to_owned(), cell(Some(3))],
        ];
        let lines = [
            "NAME               N  LAST",
            "é              1,000  -",
            r"a\tb\u{1b}[2J      7  3",
            "",
        ];
        assert_eq!(table(titles, &rows), lines.join("\n"));
    }
}
