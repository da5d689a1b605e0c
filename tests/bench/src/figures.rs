//! Samples of one program, and what they come to: medians, with the spread beside them.

use crate::child::Cost;

/// What several runs of one program cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    costs: Vec<Cost>,
}

/// A median and the extremes around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    /// The middle value, or the mean of the two in the middle.
    pub(crate) middle: f64,
    /// The smallest.
    pub(crate) least: f64,
    /// The largest.
    pub(crate) most: f64,
}

impl Samples {
    /// Adds a run.
    pub(crate) fn add(&mut self, cost: Cost) {
        self.costs.push(cost);
    }

    /// CPU seconds per run.
    pub(crate) fn cpu_s(&self) -> Median {
        median(self.costs.iter().map(|cost| cost.cpu_s))
    }

    /// Wall seconds per run.
    pub(crate) fn wall_s(&self) -> Median {
        median(self.costs.iter().map(|cost| cost.wall_s))
    }

    /// Cores that others kept busy during the runs.
    pub(crate) fn foreign_cores(&self) -> Median {
        median(self.costs.iter().map(|cost| cost.foreign_cores))
    }
}

/// The median of some values; all zero when there are none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Median {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (Some(&least), Some(&most)) = (values.first(), values.last()) else {
        return Median { middle: 0.0, least: 0.0, most: 0.0 };
    };
    let half = values.len() / 2;
    let middle =
        if values.len().is_multiple_of(2) { (values[half - 1] + values[half]) / 2.0 } else { values[half] };
    Median { middle, least, most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), Median { middle: 2.5, least: 1.0, most: 4.0 });
        assert_eq!(median([9.0, 1.0, 2.0].into_iter()).middle, 2.0);
    }
}
