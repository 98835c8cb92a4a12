//! Fixed arrays of victims that are looked after. Allocates nothing.

/// Keeps `new` in place of the one that is the `same`, else in a place that is free, else in that of the lowest `age`.
pub(super) fn keep<T>(
    places: &mut [Option<T>],
    new: T,
    same: impl Fn(&T) -> bool,
    age: impl Fn(&T) -> u64,
) {
    let place = places.iter_mut().min_by_key(|place| match place {
        Some(old) if same(old) => (0, 0),
        None => (1, 0),
        Some(old) => (2, age(old)),
    });
    if let Some(place) = place {
        *place = Some(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_then_a_free_place_then_the_oldest() {
        let mut places = [None; 3];
        let mut put = |name: char, age: u64| {
            let same = |old: &(char, u64)| old.0 == name;
            keep(&mut places, (name, age), same, |old| old.1);
            places
        };
        put('a', 5);
        put('b', 3);
        assert_eq!(put('a', 4), [Some(('a', 4)), Some(('b', 3)), None]);
        put('c', 6);
        assert_eq!(put('d', 7)[1], Some(('d', 7)));
    }
}
