//! JSON to what a function takes, and back.

use rendez_rpc::Functions;

use super::*;

fn never(_: &str) -> Result<Tensor, CliError> {
    Err(wrong("no file".into()))
}

fn signature(arguments: &str) -> Signature {
    Signature::parse(&format!("f({arguments}) -> ()")).expect("a signature")
}

fn packed(arguments: &str, texts: &[&str]) -> Result<Packer, CliError> {
    let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
    pack(&signature(arguments), &texts, &mut never)
}

fn dims(tensor: &Tensor) -> Vec<u64> {
    tensor.shape().dims().collect()
}

/// What the library writes for the same values.
fn written<T: rendez_rpc::Args>(values: &T) -> Packer {
    let mut packer = Packer::default();
    values.put(&mut packer).expect("written");
    packer
}

fn same(arguments: &str, texts: &[&str], values: &impl rendez_rpc::Args) {
    let (ours, theirs) = (packed(arguments, texts).expect("packed"), written(values));
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{arguments}");
}

#[test]
fn arguments_are_written_as_the_library_writes_them() {
    same(
        "u8,i64,u128,",
        &["255", "-3", "\"340282366920938463463374607431768211455\""],
        &(255_u8, -3_i64, u128::MAX),
    );
    same(
        "f32,f64,f64,",
        &["0.1", "1e300", "\"inf\""],
        &(0.1_f32, 1e300_f64, f64::INFINITY),
    );
    same(
        "String,String,String,char,",
        &["plain words", "\"quoted\"", "12", "ä"],
        &(
            "plain words".to_owned(),
            "quoted".to_owned(),
            "12".to_owned(),
            'ä',
        ),
    );
    same(
        "Vec<Option<u32>>,bool,",
        &["[1,null,3]", "true"],
        &(vec![Some(1_u32), None, Some(3)], true),
    );
    same(
        "(i32,Vec<String>,),(),",
        &["[-1,[\"a\"]]", "null"],
        &((-1_i32, vec!["a".to_owned()]), ()),
    );
    let map = std::collections::BTreeMap::from([("a".to_owned(), 1_u8), ("b".to_owned(), 2)]);
    same("Map<String,u8>,", &["{\"a\":1,\"b\":2}"], &(map,));
    let map = std::collections::BTreeMap::from([(1_u8, true)]);
    same("Map<u8,bool>,", &["[[1,true]]"], &(map,));
}

#[test]
fn tensors_are_lists_objects_and_files() {
    let tensor = |text: &str| {
        let mut asked = Vec::new();
        let mut load = |file: &str| {
            asked.push(file.to_owned());
            Ok(Tensor::scalar(7_u8))
        };
        let packed = pack(&signature("Tensor,"), &[text.to_owned()], &mut load)?;
        Ok::<_, CliError>((packed.tensors()[0].clone(), asked))
    };
    let (made, _) = tensor("[[1,2,3],[4,5,6.5]]").expect("a tensor");
    assert_eq!(dims(&made), [2, 3]);
    assert_eq!(
        made.as_slice::<f32>().expect("f32"),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.5]
    );
    let (made, _) = tensor("2.5").expect("a tensor");
    assert_eq!(
        (&*dims(&made), made.as_slice::<f32>().expect("f32")),
        (&[][..], &[2.5][..])
    );
    let (made, _) = tensor(r#"{"dtype":"i64","shape":[2,1],"data":[1,-2]}"#).expect("a tensor");
    assert_eq!(
        (&*dims(&made), made.as_slice::<i64>().expect("i64")),
        (&[2, 1][..], &[1, -2][..])
    );
    let (_, asked) = tensor("@some file.npy").expect("a tensor");
    assert_eq!(asked, ["some file.npy"]);
    for bad in [
        "[[1],[2,3]]",
        "[1,[2]]",
        "[[1],2]",
        "\"x\"",
        "{}",
        r#"{"dtype":"i8","data":[300]}"#,
    ] {
        let error = tensor(bad).unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_ARGUMENTS, "{bad}");
    }
    let error = tensor(r#"{"dtype":"u8","shape":[3],"data":[1]}"#).unwrap_err();
    assert!(
        error.message().starts_with("argument 1 of f(Tensor,)"),
        "{}",
        error.message()
    );
}

#[test]
fn what_does_not_fit_is_told_with_its_place() {
    for (arguments, text) in [
        ("u8,", "256"),
        ("u8,", "-1"),
        ("i32,", "1.5"),
        ("bool,", "1"),
        ("char,", "ab"),
        ("Vec<u8>,", "[1,\"x\"]"),
        ("(u8,u8,),", "[1]"),
        ("Map<String,u8>,", "3"),
        ("(),", "1"),
        ("f32,", "x"),
        ("RRef,", "1"),
        ("Batch{a,},", "{}"),
    ] {
        let error = packed(arguments, &[text]).unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_ARGUMENTS);
        assert!(
            error.message().starts_with("argument 1 of f("),
            "{}",
            error.message()
        );
    }
    let error = packed("u8,", &[]).unwrap_err();
    assert!(
        error.message().contains("takes 1 argument, but 0 were"),
        "{}",
        error.message()
    );
}

#[test]
fn results_are_read_back() {
    fn result<T: rendez_rpc::Value>(value: T) -> Result<Value, ValueError> {
        let text = format!("f() -> {}", name::<T>());
        let mut packer = Packer::default();
        value.put(&mut packer).expect("written");
        unpack(
            Signature::parse(&text).expect("a signature").result(),
            &mut packer.into(),
            2,
        )
    }
    fn name<T: rendez_rpc::Value>() -> String {
        let mut name = String::new();
        T::name(&mut name);
        name
    }
    assert_eq!(
        result((1_u8, -2_i64, 0.1_f32)).expect("read"),
        json!([1, -2, 0.1])
    );
    assert_eq!(
        result(vec![Some("a".to_owned()), None]).expect("read"),
        json!(["a", null])
    );
    assert_eq!(
        result((u128::MAX, f64::NAN)).expect("read"),
        json!([u128::MAX.to_string(), "NaN"])
    );
    let map = std::collections::BTreeMap::from([("a".to_owned(), 1_u8)]);
    assert_eq!(result(map).expect("read"), json!({ "a": 1 }));
    let tensor =
        Tensor::from_vec(vec![1_i32, 2, 3], Shape::new(&[3]).expect("a shape")).expect("a tensor");
    let shown = json!({ "dtype": "i32", "shape": [3], "data": [1, 2], "left_out": 1 });
    assert_eq!(result(tensor).expect("read"), shown);
    let functions = Functions::new().add("g", |number: u8| vec![number]);
    assert_eq!(functions.signature("g"), Some("g(u8,) -> Vec<u8>"));
}
