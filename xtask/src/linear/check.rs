//! Is there an order of a history's operations, each at one moment between its call and its answer,
//! that explains every answer? A depth-first search that remembers which sets of operations led to
//! which state, so that no pair is looked at twice.

use std::collections::HashSet;
use std::hash::Hash;

/// Most operations of one history: a set of them is one number.
pub(super) const OPERATIONS_MAX: usize = 128;

/// What one object does, one operation after another.
pub(super) trait Model {
    type State: Clone + Eq + Hash;
    type Asked;
    type Answer: Eq;

    fn step(state: &Self::State, asked: &Self::Asked) -> (Self::State, Self::Answer);
}

/// What a caller knows of an operation after its end.
#[derive(Clone, Debug)]
pub(super) enum Seen<A> {
    /// It was answered so.
    Answered(A),
    /// It was refused for something that the model does not know; it changed nothing.
    Refused,
    /// No answer came: it may have taken effect at any time after its call, or not at all.
    Unknown,
}

/// One operation of a history. Moments are numbers of one clock.
#[derive(Clone, Debug)]
pub(super) struct Operation<Q, A> {
    pub(super) called: u64,
    pub(super) ended: u64,
    pub(super) asked: Q,
    pub(super) seen: Seen<A>,
}

/// True when some order explains the history.
pub(super) fn explains<M: Model>(
    first: &M::State,
    history: &[Operation<M::Asked, M::Answer>],
) -> bool {
    let history: Vec<_> = history
        .iter()
        .filter(|operation| !matches!(operation.seen, Seen::Refused))
        .collect();
    assert!(
        history.len() <= OPERATIONS_MAX,
        "a longer history than can be looked at"
    );
    // What must be placed; an operation without answer may be left out.
    let needed = (0..history.len())
        .filter(|&at| matches!(history[at].seen, Seen::Answered(_)))
        .fold(0_u128, |set, at| set | 1 << at);
    let mut looked = HashSet::new();
    let mut open = vec![(0_u128, first.clone())];
    while let Some((placed, state)) = open.pop() {
        if placed & needed == needed {
            return true;
        }
        if !looked.insert((placed, state.clone())) {
            continue;
        }
        // The next one was called before any other that is left was answered.
        let first_end = (0..history.len())
            .filter(|at| placed & 1 << at == 0)
            .map(|at| history[at])
            .filter(|operation| matches!(operation.seen, Seen::Answered(_)))
            .map(|operation| operation.ended)
            .min()
            .unwrap_or(u64::MAX);
        for (at, operation) in history.iter().enumerate() {
            if placed & 1 << at != 0 || operation.called > first_end {
                continue;
            }
            let (next, answer) = M::step(&state, &operation.asked);
            let fits = match &operation.seen {
                Seen::Answered(told) => *told == answer,
                Seen::Refused | Seen::Unknown => true,
            };
            if fits {
                open.push((placed | 1 << at, next));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One number: `Some` sets it, `None` reads it.
    struct Register;

    impl Model for Register {
        type State = u32;
        type Asked = Option<u32>;
        type Answer = u32;
        fn step(state: &u32, asked: &Option<u32>) -> (u32, u32) {
            let state = asked.unwrap_or(*state);
            (state, state)
        }
    }

    fn set(called: u64, ended: u64, value: u32) -> Operation<Option<u32>, u32> {
        Operation {
            called,
            ended,
            asked: Some(value),
            seen: Seen::Answered(value),
        }
    }

    fn read(called: u64, ended: u64, value: u32) -> Operation<Option<u32>, u32> {
        Operation {
            called,
            ended,
            asked: None,
            seen: Seen::Answered(value),
        }
    }

    fn lost(called: u64, value: u32) -> Operation<Option<u32>, u32> {
        Operation {
            called,
            ended: u64::MAX,
            asked: Some(value),
            seen: Seen::Unknown,
        }
    }

    #[test]
    fn what_overlaps_may_stand_in_any_order_and_what_does_not_may_not() {
        let good = [set(1, 4, 1), read(2, 3, 0), read(2, 3, 1), read(5, 6, 1)];
        assert!(
            !explains::<Register>(&0, &[good[0].clone(), read(5, 6, 0)]),
            "a stale read"
        );
        assert!(explains::<Register>(&0, &good));
        let back = [set(1, 2, 1), set(1, 6, 2), read(3, 4, 2), read(5, 6, 1)];
        assert!(!explains::<Register>(&0, &back), "2 was seen, then 1 again");
        let forth = [set(1, 2, 1), set(1, 6, 2), read(3, 4, 1), read(5, 6, 2)];
        assert!(explains::<Register>(&0, &forth));
    }

    #[test]
    fn an_operation_without_answer_took_effect_late_or_never_but_not_early() {
        assert!(
            explains::<Register>(&0, &[lost(1, 7), read(5, 6, 0)]),
            "never"
        );
        assert!(
            explains::<Register>(&0, &[lost(1, 7), read(2, 3, 0), read(5, 6, 7)]),
            "late"
        );
        assert!(
            !explains::<Register>(&0, &[read(1, 2, 7), lost(3, 7)]),
            "early"
        );
        assert!(
            !explains::<Register>(&0, &[lost(1, 7), read(2, 3, 7), read(5, 6, 0)]),
            "undone"
        );
    }

    #[test]
    fn what_was_refused_changed_nothing() {
        let refused = Operation {
            seen: Seen::Refused,
            ..set(1, 2, 7)
        };
        assert!(!explains::<Register>(&0, &[refused, read(3, 4, 7)]));
    }
}
