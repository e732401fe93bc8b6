//! [`Rng`]: choices that a seed repeats.

/// A sequence of numbers that its seed determines, on every machine (`SplitMix64`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent sequence for part number `index`.
    #[must_use]
    pub fn part(seed: u64, index: u64) -> Self {
        let mut whole = Self(seed ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self(whole.number())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in a range that is not empty.
    pub fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start).max(1);
        range.start + self.number() % width
    }

    /// True with this probability in percent.
    pub fn percent(&mut self, often: u64) -> bool {
        self.within(0..100) < often
    }

    /// One of several; `None` if there are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(choices.len()).ok()?;
        let index = self.within(0..count.max(1));
        choices.get(usize::try_from(index).ok()?)
    }

    /// Brings a list into a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let bound = u64::try_from(last + 1).unwrap_or(u64::MAX);
            let other = usize::try_from(self.within(0..bound)).unwrap_or(0);
            list.swap(last, other);
        }
    }
}
