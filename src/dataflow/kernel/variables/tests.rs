//! Variables by name, held in an order that cannot deadlock.

use super::*;

#[test]
fn containers_keep_names_apart_and_are_cleared_by_name() {
    let all = Variables::default();
    let (plain, other) = (all.find("", "v"), all.find("other", "v"));
    assert!(Arc::ptr_eq(&plain, &all.find(DEFAULT_CONTAINER, "v")));
    assert!(!Arc::ptr_eq(&plain, &other));
    all.clear(&["other".to_owned()]);
    assert!(other.is_forgotten() && !plain.is_forgotten());
    assert!(Arc::ptr_eq(&plain, &all.find("", "v")));
    all.clear(&[String::new()]);
    assert!(
        plain.is_forgotten(),
        "an empty name is the default container"
    );
}

/// A content may be large, and to drop it takes its time.
#[test]
fn contents_are_dropped_when_others_may_look_for_theirs() {
    let all = Arc::new(Variables::default());
    let (others, (told, is_free)) = (Arc::clone(&all), std::sync::mpsc::channel());
    let release = move |_: Vec<u8>| told.send(others.0.try_lock().is_ok()).expect("heard");
    let meta = Tensor::from_vec(vec![0u8; 4096], Shape::new(&[4096]).expect("a shape"));
    let meta = meta.expect("a tensor").meta();
    let content = Tensor::from_foreign(meta, vec![0u8; 4096], release);
    all.find("", "v").assign(content.expect("a tensor"));
    all.clear(&[]);
    assert_eq!(is_free.try_recv(), Ok(true));
}

#[test]
fn readers_do_not_wait_for_who_computes() {
    let all = Variables::default();
    let variable = all.find("", "v");
    variable.assign(Tensor::scalar(1f32));
    let new = variable
        .update(|old| {
            assert_eq!(variable.read().expect("a content").bytes(), old.bytes());
            Ok(Tensor::scalar(2f32))
        })
        .expect("updated");
    assert_eq!(variable.read().expect("a content").bytes(), new.bytes());
    let refused = variable.update(|_| Err(Status::of(catalogue::KERNEL_INPUT, "no")));
    assert!(refused.is_err());
    assert_eq!(variable.read().expect("a content").bytes(), new.bytes());
    assert_eq!(variable.bytes(), 4);
}

fn hold<'a>(variables: &[&'a Arc<Variable>]) -> Option<Vec<Held<'a>>> {
    hold_all(variables, |variable| Ok::<_, ()>(variable.hold())).expect("it waits")
}

#[test]
fn many_are_held_in_whatever_order_they_are_named() {
    let all = Variables::default();
    let (a, b) = (all.find("", "a"), all.find("", "b"));
    assert!(hold(&[&a, &a]).is_none());
    std::thread::scope(|threads| {
        for order in [[&a, &b], [&b, &a]] {
            threads.spawn(move || {
                for _ in 0..1000 {
                    let held = hold(&order).expect("two variables");
                    held[0].replace(Tensor::scalar(0f32));
                }
            });
        }
    });
    let held = hold(&[&b, &a]).expect("two variables");
    held[0].replace(Tensor::scalar(7f32));
    drop(held);
    assert_eq!(
        b.read().expect("a content").as_slice::<f32>(),
        Ok(&[7f32][..])
    );
}

#[test]
fn of_many_none_is_held_if_one_cannot_be() {
    let all = Variables::default();
    let (a, b) = (all.find("", "a"), all.find("", "b"));
    for one in [&a, &b] {
        let held = one.hold();
        assert!(one.try_hold().is_none());
        let both = hold_all(&[&a, &b], |variable| variable.try_hold().ok_or(()));
        assert!(both.is_err());
        drop(held);
        assert!(a.try_hold().is_some() && b.try_hold().is_some());
    }
}
