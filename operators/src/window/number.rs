//! Numbers in aggregates: integers stay integers, and sums of doubles do not depend on their order.
//!
//! A double sum keeps the exact total as a few partial sums that do not overlap (J. R. Shewchuk, "Adaptive
//! precision floating-point arithmetic", 1997; the algorithm of Python's `math.fsum`) and rounds once, at the
//! end. So two workers that saw the same records in another order give the same bits.

use super::AggregateError;
use serde::{Deserialize, Serialize};

/// An integer or a double.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A double.
    Double(f64),
}

impl Number {
    /// As a double; integers beyond 2^53 are rounded.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(int) => int as f64,
            Number::Double(double) => double,
        }
    }
}

/// A value that can be summed. `None` is null and is skipped.
pub trait Numeric {
    /// Type of a sum of such values.
    type Total;

    /// The number, or why it is none.
    fn number(&self) -> Result<Option<Number>, AggregateError>;

    /// A sum as the flow sees it.
    fn total(number: Number) -> Self::Total;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Numeric for $int {
            type Total = i64;

            fn number(&self) -> Result<Option<Number>, AggregateError> {
                i64::try_from(*self).map(|int| Some(Number::Int(int))).map_err(|_| AggregateError::Overflow)
            }

            fn total(number: Number) -> i64 {
                match number {
                    Number::Int(int) => int,
                    Number::Double(_) => unreachable!("a sum of integers is an integer"),
                }
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64, usize, isize);

impl Numeric for f64 {
    type Total = f64;

    fn number(&self) -> Result<Option<Number>, AggregateError> {
        Ok(Some(Number::Double(*self)))
    }

    fn total(number: Number) -> f64 {
        number.as_f64()
    }
}

impl Numeric for f32 {
    type Total = f64;

    fn number(&self) -> Result<Option<Number>, AggregateError> {
        Ok(Some(Number::Double(f64::from(*self))))
    }

    fn total(number: Number) -> f64 {
        number.as_f64()
    }
}

impl<N: Numeric> Numeric for Option<N> {
    type Total = N::Total;

    fn number(&self) -> Result<Option<Number>, AggregateError> {
        self.as_ref().map_or(Ok(None), Numeric::number)
    }

    fn total(number: Number) -> N::Total {
        N::total(number)
    }
}

/// An exact sum of integers and doubles.
///
/// ```
/// use tidegate_operators::window::{ExactSum, Number};
///
/// let mut sum = ExactSum::default();
/// for number in [1e100, 1.0, -1e100] {
///     sum.add(Number::Double(number));
/// }
/// assert_eq!(sum.total(), Ok(Number::Double(1.0)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExactSum {
    ints: i128,
    /// Finite doubles: their sum is the sum of these, which do not overlap, the smallest first.
    partials: Vec<f64>,
    /// Sum of what is not finite; 0 when there is none.
    special: f64,
    doubles: bool,
}

impl ExactSum {
    /// Whether the integer part would leave the range of an i64, or the doubles theirs.
    pub fn check(&self, number: Number) -> Result<(), AggregateError> {
        let fits = match number {
            Number::Int(int) => i64::try_from(self.ints + i128::from(int)).is_ok(),
            Number::Double(double) => {
                let largest = self.partials.last().copied().unwrap_or(0.0);
                !double.is_finite() || (double + largest).abs() <= f64::MAX / 4.0
            }
        };
        if fits { Ok(()) } else { Err(AggregateError::Overflow) }
    }

    /// Adds a number.
    pub fn add(&mut self, number: Number) {
        match number {
            Number::Int(int) => self.ints += i128::from(int),
            Number::Double(double) => {
                self.doubles = true;
                if double.is_finite() {
                    self.add_finite(double);
                } else {
                    self.special += double;
                }
            }
        }
    }

    /// Adds all that another sum has.
    pub fn merge(&mut self, other: &ExactSum) {
        self.ints += other.ints;
        self.special += other.special;
        self.doubles |= other.doubles;
        for &partial in &other.partials {
            self.add_finite(partial);
        }
    }

    /// The sum: an integer unless a double was added.
    pub fn total(&self) -> Result<Number, AggregateError> {
        if self.doubles {
            Ok(Number::Double(self.as_f64()))
        } else {
            i64::try_from(self.ints).map(Number::Int).map_err(|_| AggregateError::Overflow)
        }
    }

    /// The sum as a double, rounded once.
    pub fn as_f64(&self) -> f64 {
        if self.special != 0.0 {
            // One NaN, whatever its sign and payload.
            return if self.special.is_nan() { f64::NAN } else { self.special };
        }
        let mut all = self.clone();
        let mut rest = self.ints;
        while rest != 0 {
            let part = rest as f64;
            all.add_finite(part);
            rest -= part as i128;
        }
        all.rounded() + 0.0
    }

    fn add_finite(&mut self, mut x: f64) {
        let mut kept = 0;
        for index in 0..self.partials.len() {
            let mut y = self.partials[index];
            if x.abs() < y.abs() {
                std::mem::swap(&mut x, &mut y);
            }
            let high = x + y;
            let low = y - (high - x);
            if low != 0.0 {
                self.partials[kept] = low;
                kept += 1;
            }
            x = high;
        }
        self.partials.truncate(kept);
        if x != 0.0 {
            self.partials.push(x);
        }
    }

    /// The sum of the partials, correctly rounded (half to even).
    fn rounded(&self) -> f64 {
        let Some((&largest, mut rest)) = self.partials.split_last() else {
            return 0.0;
        };
        let mut high = largest;
        let mut low = 0.0;
        while let Some((&y, tail)) = rest.split_last() {
            let x = high;
            high = x + y;
            low = y - (high - x);
            rest = tail;
            if low != 0.0 {
                break;
            }
        }
        // `high` is rounded half to even on `low` alone: what is still below may break the tie.
        if let Some(&below) = rest.last()
            && ((low < 0.0 && below < 0.0) || (low > 0.0 && below > 0.0))
        {
            let twice = low * 2.0;
            let up = high + twice;
            if twice == up - high {
                high = up;
            }
        }
        high
    }
}

/// An exact mean of integers and doubles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExactMean {
    numbers: u64,
    sum: ExactSum,
}

impl ExactMean {
    /// Whether the sum of the doubles would leave their range. A mean is a double: a sum of integers may be
    /// larger than one integer.
    pub fn check(&self, number: Number) -> Result<(), AggregateError> {
        match number {
            Number::Int(_) => Ok(()),
            Number::Double(_) => self.sum.check(number),
        }
    }

    /// Adds a number.
    pub fn add(&mut self, number: Number) {
        self.numbers += 1;
        self.sum.add(number);
    }

    /// Adds all that another mean has.
    pub fn merge(&mut self, other: &ExactMean) {
        self.numbers += other.numbers;
        self.sum.merge(&other.sum);
    }

    /// The mean; `None` of no numbers.
    pub fn mean(&self) -> Option<f64> {
        (self.numbers > 0).then(|| self.sum.as_f64() / self.numbers as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};

    #[test]
    fn a_sum_of_doubles_has_the_same_bits_in_every_order() {
        let mut rng = SmallRng::seed_from_u64(7);
        for round in 0..200 {
            let mut numbers: Vec<f64> = (0..50)
                .map(|_| rng.random_range(-1e6..1e6) * 10f64.powi(rng.random_range(-20..20)))
                .collect();
            let sum_of = |numbers: &[f64]| {
                let mut sum = ExactSum::default();
                numbers.iter().for_each(|n| sum.add(Number::Double(*n)));
                sum.as_f64().to_bits()
            };
            let expected = sum_of(&numbers);
            numbers.shuffle(&mut rng);
            assert_eq!(sum_of(&numbers), expected, "round {round}");
            let (left, right) = numbers.split_at(17);
            let (mut a, mut b) = (ExactSum::default(), ExactSum::default());
            left.iter().for_each(|n| a.add(Number::Double(*n)));
            right.iter().for_each(|n| b.add(Number::Double(*n)));
            b.merge(&a);
            assert_eq!(b.as_f64().to_bits(), expected, "merged, round {round}");
        }
    }

    #[test]
    fn tenths_add_up_to_one() {
        let mut sum = ExactSum::default();
        (0..10).for_each(|_| sum.add(Number::Double(0.1)));
        assert_eq!(sum.total(), Ok(Number::Double(1.0)));
    }

    #[test]
    fn integers_stay_integers_until_a_double_comes() {
        let mut sum = ExactSum::default();
        sum.add(Number::Int(i64::MAX));
        assert_eq!(sum.check(Number::Int(1)), Err(AggregateError::Overflow));
        assert_eq!(sum.total(), Ok(Number::Int(i64::MAX)));
        sum.add(Number::Double(-9.223_372_036_854_776e18));
        assert_eq!(sum.total(), Ok(Number::Double(-1.0)));
    }

    #[test]
    fn infinities_that_disagree_are_no_number() {
        let mut sum = ExactSum::default();
        sum.add(Number::Double(f64::INFINITY));
        sum.add(Number::Double(1.0));
        assert_eq!(sum.total(), Ok(Number::Double(f64::INFINITY)));
        sum.add(Number::Double(f64::NEG_INFINITY));
        assert!(sum.as_f64().is_nan());
    }
}
