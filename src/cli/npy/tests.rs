//! Arrays in files: what NumPy wrote, what comes back, and what is no array.

use proptest::prelude::*;

use super::*;

/// A file with a header of our own.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let len = header.len() as u16;
    [MAGIC, &[1, 0], &len.to_le_bytes(), header.as_bytes(), data].concat()
}

fn of(descr: &str, shape: &str, data: &[u8]) -> Result<Tensor, String> {
    parse(file(
        &format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"),
        data,
    ))
}

#[test]
fn what_numpy_wrote_is_read() {
    let head = b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    let mut bytes = head.to_vec();
    bytes.resize(127, b' ');
    bytes.push(b'\n');
    for value in 1..=6u8 {
        bytes.extend(f32::from(value).to_le_bytes());
    }
    let tensor = parse(bytes.clone()).expect("an array");
    assert_eq!(tensor.shape(), Shape::new(&[2, 3]).expect("a shape"));
    assert_eq!(
        tensor.as_slice::<f32>().expect("floats"),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    );
    // Our own differ from NumPy's in nothing but a comma.
    let ours = format(&tensor).expect("a file");
    assert_eq!(ours.len(), bytes.len());
    assert_eq!(ours[128..], bytes[128..]);
    // Version 2 counts its header with four bytes; keys come in any order, in either quotes.
    let header = "{\"shape\": (), \"fortran_order\": False , 'descr':'|b1'}";
    let long = [
        MAGIC,
        &[2, 0],
        &(header.len() as u32).to_le_bytes(),
        header.as_bytes(),
        &[1],
    ]
    .concat();
    let truth = parse(long).expect("a truth value");
    assert_eq!((truth.dtype(), truth.shape()), (DType::Bool, Shape::SCALAR));
}

#[test]
fn an_array_in_fortran_order_is_read_row_by_row() {
    let of = |descr: &str, shape: &str, data: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': True, 'shape': {shape}, }}\n");
        parse(file(&header, data))
    };
    // As NumPy writes numpy.arange(6, dtype='<i2').reshape(3, 2).T.
    let data: Vec<u8> = (0..6i16).flat_map(i16::to_le_bytes).collect();
    let tensor = of("<i2", "(2, 3)", &data).expect("an array");
    assert_eq!(tensor.shape(), Shape::new(&[2, 3]).expect("a shape"));
    assert_eq!(
        tensor.as_slice::<i16>().expect("integers"),
        [0, 2, 4, 1, 3, 5]
    );
    // And numpy.arange(12, dtype='u1').reshape(2, 3, 2, order='F').
    let data: Vec<u8> = (0..12).collect();
    let tensor = of("|u1", "(2, 3, 2)", &data).expect("an array");
    let rows = [0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11];
    assert_eq!(tensor.as_slice::<u8>().expect("bytes"), rows);
    let tensor = of("|S2", "(2, 2)", b"aabbccd\0").expect("bytes");
    let strings: Vec<_> = tensor.strings().expect("strings").iter().collect();
    assert_eq!(strings, [b"aa".as_slice(), b"cc", b"bb", b"d"]);
    for (descr, shape) in [("<f4", "(0, 3)"), ("|S0", "(2, 2)")] {
        assert!(of(descr, shape, b"").is_ok(), "{descr} {shape}");
    }
    assert!(of("<f4", "(2, 2)", &[0; 12]).is_err());
}

#[test]
fn strings_lose_their_padding() {
    let tensor = of("|S3", "(2,)", b"ab\0\0c\0").expect("bytes");
    let strings: Vec<_> = tensor.strings().expect("strings").iter().collect();
    assert_eq!(strings, [b"ab".as_slice(), b"\0c"]);
    let units: Vec<u8> = ['é', 'a', '\0', '中']
        .into_iter()
        .flat_map(|c| (c as u32).to_le_bytes())
        .collect();
    let tensor = of("<U2", "(2, 1)", &units).expect("characters");
    let strings: Vec<_> = tensor.strings().expect("strings").iter().collect();
    assert_eq!(strings, ["éa".as_bytes(), "\0中".as_bytes()]);
    assert!(
        of("<U1", "()", &0xd800u32.to_le_bytes())
            .expect_err("a surrogate")
            .contains("not Unicode")
    );
    assert!(
        of("|S0", "(4000000,)", b"")
            .expect_err("too many")
            .contains("4000000 strings")
    );
    let zero = Tensor::from_strings(&["a\0"], Shape::SCALAR).expect("a string");
    assert!(
        format(&zero)
            .expect_err("padding")
            .contains("ends in a zero")
    );
}

#[test]
fn what_is_no_array_is_refused_with_its_reason() {
    let cases = [
        (b"".to_vec(), "does not begin"),
        (MAGIC.to_vec(), "ends in its head"),
        ([MAGIC, &[4, 0, 0, 0]].concat(), "version [4, 0]"),
        ([MAGIC, &[1, 0, 9]].concat(), "ends in its head"),
        ([MAGIC, &[1, 0, 9, 0]].concat(), "ends in its header"),
        (
            [MAGIC, &[2, 0, 255, 255, 255, 255]].concat(),
            "claims 4294967295 bytes",
        ),
        (file("", b""), "no '{'"),
        (file("{'descr': '<f4'}", b""), "is missing"),
        (file("{'descr': '<f4', 'descr': '<f4'}", b""), "comes twice"),
        (file("{'descr': [('a', '<f4')], }", b""), "records"),
        (file("{'other': 1}", b""), "a key that arrays have not"),
        (file("{'fortran_order': 1}", b""), "no truth value"),
        (file("{'shape': (-1,)}", b""), "no tuple of sizes"),
        (file("{'shape': (+1,)}", b""), "no tuple of sizes"),
        (
            file(
                "{'descr': '<f4', 'fortran_order': False, 'shape': ()} x",
                &[0; 4],
            ),
            "something follows",
        ),
    ];
    for (bytes, wanted) in cases {
        let said = parse(bytes).expect_err(wanted);
        assert!(said.contains(wanted), "{said}, not {wanted}");
    }
    let cases = [
        ("<f4", "(3,)", "another number of bytes than the 8"),
        ("<f4", "(9223372036854775807,)", "another number"),
        (">f4", "(2,)", "big-endian: save them with .astype('<f4')"),
        ("|O", "(2,)", "'|O' are not read"),
        ("<f3", "(2,)", "'<f3' are not read"),
        ("é", "(2,)", "are not read"),
        ("", "(2,)", "are not read"),
        ("|S4294967296", "(2,)", "are not read"),
        ("<M8[ns]", "(1,)", "are not read"),
    ];
    for (descr, shape, wanted) in cases {
        let data = if wanted.contains('8') {
            &[0; 8][..]
        } else {
            &[0; 7]
        };
        let said = of(descr, shape, data).expect_err(descr);
        assert!(said.contains(wanted), "{said}, not {wanted}");
    }
    assert!(of("<f4", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", &[0; 4]).is_err());
}

#[test]
fn files_are_written_whole_and_named_when_they_are_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.npy");
    let tensor = Tensor::from_vec(vec![1i64, -2], Shape::row(2).expect("a row")).expect("a tensor");
    let output = Output::open(&path).expect("opened");
    write(&path, output, &tensor).expect("is written");
    assert_eq!(
        read(&path)
            .expect("is read")
            .as_slice::<i64>()
            .expect("integers"),
        [1, -2]
    );
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );
    let missing = read(&folder.path().join("b.npy")).expect_err("is not there");
    assert_eq!(missing.reason(), "FILE_UNREADABLE");
    assert!(missing.message().contains("b.npy"), "{missing}");
    assert_eq!(
        read(folder.path()).expect_err("a folder").reason(),
        "FILE_UNREADABLE"
    );
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(dims in prop::collection::vec(0..5u64, 0..5), kind in 0..TYPES.len()) {
        let dtype = TYPES[kind].1;
        let shape = Shape::new(&dims).expect("a shape");
        let meta = TensorMeta::new(dtype, shape).expect("a meta");
        let len = meta.size().expect("a size") as usize;
        // A truth value is 0 or 1.
        let most = if dtype == DType::Bool { 1 } else { u8::MAX };
        let data: Vec<u8> = (0..len).map(|at| at as u8 & most).collect();
        let tensor = Tensor::from_bytes(meta, data.clone().into()).expect("a tensor");
        let again = parse(format(&tensor).expect("a file")).expect("is read");
        prop_assert_eq!(again.meta(), meta);
        prop_assert_eq!(again.host().unwrap(), data.as_slice());
    }

    #[test]
    fn no_bytes_make_it_panic(
        header in "(\\{|\\}|'|descr|shape|fortran_order|False|True|:|,|\\(|\\)|<|f4|S|U|9|L| |é){0,24}",
        data in prop::collection::vec(any::<u8>(), 0..16),
        cut in 0..80usize,
    ) {
        let mut bytes = file(&header, &data);
        bytes.truncate(cut);
        let _ = parse(bytes);
        let _ = parse(file(&header, &data));
        let _ = parse(data);
    }
}
