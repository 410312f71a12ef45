//! Which keys a query sees, against the definition: a backend and its oracle share the rule, so it has an oracle of its own.

use ironmill_compute::{Attention, DType, Mask};

/// The keys that the definition lets query `t` see, one by one.
fn by_definition(attention: &Attention, t: usize, keys: usize, borders: Option<&[usize]>) -> Vec<usize> {
    let sees = |s: &usize| {
        let in_mask = attention.mask == Mask::Full || *s <= t;
        let in_document = borders.is_none_or(|borders| borders[*s] == borders[t]);
        let in_window = attention.window == 0 || s.abs_diff(t) < attention.window;
        in_mask && in_document && in_window
    };
    (0..keys).filter(sees).collect()
}

fn check(attention: Attention, keys: usize, borders: Option<&[usize]>) {
    let border = |t: usize| borders.map_or(0, |borders| borders[t]);
    for t in 0..keys {
        let seen = attention.visible(t, keys, borders.is_some().then_some(&border));
        let expected = by_definition(&attention, t, keys, borders);
        assert_eq!(seen.collect::<Vec<_>>(), expected, "query {t} of {keys}, {attention:?}, {borders:?}");
    }
}

#[test]
fn a_query_sees_the_keys_that_mask_document_and_window_allow() {
    let documents: [&[usize]; 4] = [&[0; 9], &[0, 1, 1, 1, 4, 4, 6, 7, 7], &[0, 1, 2, 3], &[0]];
    for mask in [Mask::Causal, Mask::Full] {
        for window in [0, 1, 2, 3, 8, 9, 10, usize::MAX] {
            let attention = Attention {
                heads: 1,
                kv_heads: 1,
                mask,
                cached: false,
                borders: false,
                window,
                products: DType::F32,
            };
            for keys in [1, 2, 9] {
                check(attention, keys, None);
            }
            for borders in documents {
                check(Attention { borders: true, ..attention }, borders.len(), Some(borders));
            }
        }
    }
}

#[test]
fn a_query_past_the_end_of_a_cache_still_sees_a_key() {
    for window in [0, 1, 3] {
        let attention = Attention {
            heads: 1,
            kv_heads: 1,
            mask: Mask::Causal,
            cached: true,
            borders: false,
            window,
            products: DType::F32,
        };
        for t in [4, 5, 9] {
            let seen = attention.visible(t, 5, None);
            assert!(!seen.is_empty() && seen.end <= 5, "{seen:?}");
        }
    }
}
