//! Tables for a terminal.

use std::fmt;

/// Writes rows in columns as wide as they need to be: the first one to the left, the others to the right.
pub(crate) fn write<const N: usize>(f: &mut fmt::Formatter<'_>, rows: &[[String; N]]) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for (number, row) in rows.iter().enumerate() {
        if number > 0 {
            writeln!(f)?;
        }
        write!(f, "{:<width$}", row[0], width = widths[0])?;
        for (cell, width) in row.iter().zip(widths).skip(1) {
            write!(f, "  {cell:>width$}")?;
        }
    }
    Ok(())
}

/// An offset that may be unknown.
pub(crate) fn offset(offset: Option<i64>) -> String {
    offset.map_or("-".to_owned(), |offset| offset.to_string())
}
