//! Checkpoints: what is written is read back, and what is none of this network is refused.

use super::*;
use crate::train::network;

#[test]
fn what_is_written_is_read_back_and_nothing_else_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("new");
    let all = network::initial(3).expect("the first values");
    for _ in 0..2 {
        let path = write(&folder, &all).expect("is written");
        assert_eq!(path, folder.join(FILE));
    }
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1);
    let again = read(&folder, &network::variables()).expect("is read");
    assert_eq!(all.len(), again.len());
    for ((name, tensor), (again_name, again)) in all.iter().zip(&again) {
        assert_eq!(
            (name, tensor.meta(), tensor.bytes()),
            (again_name, again.meta(), again.bytes())
        );
    }
}

#[test]
fn what_is_no_checkpoint_of_this_network_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = read(folder.path(), &network::variables()).expect_err("nothing is there");
    assert_eq!(missing.reason(), "FILE_UNREADABLE");
    let other = [("steps".to_owned(), Tensor::scalar(1.0f32))];
    write(folder.path(), &other).expect("is written");
    let unfit = read(folder.path(), &network::variables()).expect_err("it lacks all");
    assert_eq!(unfit.reason(), "CHECKPOINT_UNFIT");
    assert!(
        unfit.message().contains("it has no 'hidden/weights'"),
        "{unfit}"
    );
    let wanted = [("steps".to_owned(), DType::I64, vec![])];
    let unfit = read(folder.path(), &wanted).expect_err("of another type");
    assert!(
        unfit
            .message()
            .contains("'steps' is f32 [], and i64 [] is wanted"),
        "{unfit}"
    );
    std::fs::write(folder.path().join(FILE), b"nothing").expect("is written");
    let malformed = read(folder.path(), &wanted).expect_err("no such file");
    assert_eq!(malformed.reason(), "SAFETENSORS_MALFORMED");
}
