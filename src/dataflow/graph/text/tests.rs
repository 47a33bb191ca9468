//! Text: what TensorFlow wrote is read, what is written is read back, and what is wrong is said with its place.

mod write;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::graph::decode;
use rendez_proto::tensorflow::attr_value::{ListValue, Value};
use rendez_proto::tensorflow::tensor_shape_proto::Dim;
use rendez_proto::tensorflow::{
    AttrValue, FunctionDef, FunctionDefLibrary, GraphDef, NameAttrList, NodeDef, OpDef,
    TensorProto, TensorShapeProto, VersionDef,
};
use write::write;

fn read(text: &str) -> Result<GraphDef, String> {
    decode(text.as_bytes()).map_err(|status| {
        assert_eq!(status.reason(), "GRAPH_MALFORMED", "{status:?}");
        let said = status.message().to_owned();
        said.strip_prefix("the text is not a GraphDef: ")
            .expect("says what it is not")
            .to_owned()
    })
}

/// What a graph's only attribute `a` is.
fn attr(value: &str) -> Value {
    let text = format!("node {{ attr {{ key: 'a' value {{ {value} }} }} }}");
    let def = read(&text).unwrap_or_else(|said| panic!("{value}: {said}"));
    let attr = def.node.first().and_then(|node| node.attr.get("a"));
    attr.and_then(|attr| attr.value.clone()).expect("a value")
}

#[test]
fn what_tensorflow_wrote_in_both_formats_is_the_same_graph() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/graphs");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the graphs") {
        let path = entry.expect("an entry").path();
        if !path.is_dir() {
            continue;
        }
        let bytes = |name| std::fs::read(path.join(name)).expect(name);
        let binary = decode(&bytes("graph.pb")).expect("the binary format");
        let text = decode(&bytes("graph.pbtxt")).expect("text");
        assert!(binary == text, "{}", path.display());
        assert!(
            decode(write(&binary).as_bytes()).expect("ours") == binary,
            "{}",
            path.display()
        );
        seen += 1;
    }
    assert!(seen >= 8, "{seen} graphs");
}

#[test]
fn all_spellings_are_read() {
    assert_eq!(attr("i: 5"), Value::I(5));
    assert_eq!(attr("i: -9223372036854775808"), Value::I(i64::MIN));
    assert_eq!(attr("i: 0x1F"), Value::I(31));
    assert_eq!(attr("i: -017"), Value::I(-15));
    assert_eq!(attr("i: 0"), Value::I(0));
    assert_eq!(attr("f: 1.5f"), Value::F(1.5));
    assert_eq!(attr("f: 2"), Value::F(2.0));
    assert_eq!(attr("f: -.5e+1;"), Value::F(-5.0));
    assert_eq!(attr("f: -Infinity,"), Value::F(f32::NEG_INFINITY));
    assert!(matches!(attr("f: nan"), Value::F(nan) if nan.is_nan()));
    assert_eq!(attr("b: True"), Value::B(true));
    assert_eq!(attr("b: 0"), Value::B(false));
    assert_eq!(attr("type: DT_FLOAT"), Value::Type(1));
    assert_eq!(attr("type: DT_FLOAT_REF"), Value::Type(101));
    assert_eq!(attr("type: 3"), Value::Type(3));
    assert_eq!(
        attr(r#"s: "a" 'b"' "\n\x41\101\377\u00e4""#),
        Value::S(b"ab\"\nAA\xff\xc3\xa4".to_vec())
    );
    assert_eq!(attr("list { }"), Value::List(Box::default()));
    let numbers = ListValue {
        i: vec![1, 2, -3],
        ..ListValue::default()
    };
    let numbers = Value::List(Box::new(numbers));
    assert_eq!(attr("list: < i: [1, 2] # two\n i: -3 >"), numbers);
    let dim = |size| Dim {
        size,
        name: String::new(),
    };
    let shape = TensorShapeProto {
        dim: vec![dim(2), dim(-1)],
        unknown_rank: false,
    };
    assert_eq!(
        attr("shape { dim: [{ size: 2 }, { size: -1 }] }"),
        Value::Shape(Box::new(shape))
    );
    let skipped =
        "debug_info { files: ['x'] traces < key: 1 value: -inf > } versions { producer: 7 }";
    let versions = read(skipped).expect("what is not read is skipped").versions;
    assert_eq!(versions.map(|versions| versions.producer), Some(7));
}

#[test]
fn what_is_wrong_is_said_with_line_column_and_field() {
    let cases = [
        (
            "node {\n  nome: 'x'\n}",
            "line 2, column 3, field node: no field 'nome' here; there are name, op",
        ),
        (
            "node {\n  name: x\n}",
            "line 2, column 9, field node.name: expected a text in quotes, found 'x'",
        ),
        (
            "node { name: 'a' name: 'b' }",
            "line 1, column 18, field node: field 'name' is given a second time",
        ),
        (
            "node { name 'a' }",
            "field node.name: expected ':', found a quoted text",
        ),
        (
            "node",
            "line 1, column 5, field node: expected '{', found the end of the text",
        ),
        (
            "node {",
            "line 1, column 7, field node: expected the name of a field or '}', found the end",
        ),
        (
            "}",
            "line 1, column 1, the graph: expected the name of a field, found '}'",
        ),
        (
            "version: 2147483648",
            "field version: 2147483648 is not a whole number from -2147483648 to 2147483647",
        ),
        ("version: 1.5", "field version: 1.5 is not a whole number"),
        (
            "version: -",
            "column 11, field version: expected a whole number, found the end of the text",
        ),
        (
            "node { name: 'a",
            "column 14, field node.name: a quoted text does not end on its line",
        ),
        (
            "node { name: '\\q' }",
            "column 15, field node.name: '\\' is followed by nothing that it has a meaning with",
        ),
        ("node { name: '\\777' }", "'\\' and digits are over \\377"),
        (
            "node { name: '\\ud800' }",
            "'\\u' wants four and '\\U' eight digits of a character",
        ),
        (
            "node { name: '\\377' }",
            "column 14, field node.name: it is not UTF-8",
        ),
        (
            "node { input: ['a' 'b' : ] }",
            "field node.input: expected ',' or ']', found ':'",
        ),
        ("node @", "column 6, the graph: '@' has no meaning here"),
        (
            "node { attr { key: 'a' value { i: 1 b: true } } }",
            "column 37, field node.attr.value: field 'b' where another value was given already",
        ),
        (
            "node { attr { key: 'a' value { type: DT_NONE } } }",
            "field node.attr.value.type: expected a type, as DT_FLOAT, found 'DT_NONE'",
        ),
        (
            "node { attr { key: 'a' value { f: 1x } } }",
            "field node.attr.value.f: expected a number",
        ),
    ];
    for (text, wanted) in cases {
        let said = read(text).expect_err(text);
        assert!(
            said.contains(wanted),
            "{text}\n  said   {said}\n  wanted {wanted}"
        );
    }
    let not_text = [b"node ".as_slice(), &[0xff]].concat();
    let said = decode(&not_text).expect_err("not UTF-8");
    assert!(
        said.message()
            .contains("line 1, column 6, the graph: it is not UTF-8"),
        "{said:?}"
    );
}

#[test]
fn text_that_grows_is_refused_before_it_has_grown() {
    let tensor = |field: &str| {
        format!("node {{ attr {{ key: 'a' value {{ tensor {{ tensor_shape {{}} {field} }} }} }} }}")
    };
    // Long lists, a long text, many fields and many messages.
    let grown = [
        tensor(&format!("int_val: [{}-1]", "-1,".repeat(999))),
        tensor(&format!("double_val: [{}1]", "1,".repeat(999))),
        tensor(&format!("tensor_content: '{}'", "x".repeat(9000))),
        tensor(&"half_val: -1 ".repeat(1000)),
        "node { name: 'a' input: 'b' } ".repeat(1000),
    ];
    for text in &grown {
        let whole = to_binary(text.as_bytes(), usize::MAX)
            .expect("a graph")
            .len();
        let exact = to_binary(text.as_bytes(), whole).expect("as large as may be");
        assert_eq!(exact.len(), whole);
        for most in [whole - 1, whole / 2, 0] {
            let status = to_binary(text.as_bytes(), most).expect_err("too large");
            assert_eq!(status.reason(), "GRAPH_LIMIT", "{status:?}");
        }
        // Not read on: what is wrong behind it is not seen.
        let wrong = format!("{text} $");
        let status = to_binary(wrong.as_bytes(), whole / 2).expect_err("too large, and wrong");
        assert_eq!(status.reason(), "GRAPH_LIMIT", "{status:?}");
    }
}

#[test]
fn depth_is_bounded() {
    let open = "value { func { attr { ".repeat(20_000);
    let said = read(&format!("node {{ attr {{ {open}")).expect_err("too deep");
    assert!(said.contains("deeper than 100"), "{said}");
    let open = "x { ".repeat(100_000);
    let said = read(&format!("debug_info {{ {open}")).expect_err("too deep");
    assert!(said.contains("deeper than 100"), "{said}");
    let open = "[".repeat(100_000);
    let said = read(&format!("debug_info: {open}")).expect_err("too deep");
    assert!(said.contains("deeper than 100"), "{said}");
}

#[test]
fn functions_keep_their_names_to_be_refused_by() {
    let text = "library { function { signature { name: 'f' input_arg { name: 'x' type: DT_FLOAT } } \
                node_def { name: 'y' op: 'Identity' input: 'x' } ret { key: 'o' value: 'y:output:0' } } }";
    let library = read(text).expect("a library").library.expect("is kept");
    let signature = Some(OpDef {
        name: "f".to_owned(),
    });
    assert_eq!(library.function, [FunctionDef { signature }]);
}

/// What text is made of, in any order.
const HOSTILE: &str =
    "(node|attr|value|list|i|f|s|:|\\{|\\}|\\[|\\]|'|\"|\\\\|-|9|<|>|,|#| |\n|é){0,60}";

fn tensors() -> impl Strategy<Value = TensorProto> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..8);
    let floats = prop::num::f32::NORMAL
        | prop::num::f32::ZERO
        | prop::num::f32::INFINITE
        | prop::num::f32::SUBNORMAL;
    let doubles = prop::num::f64::NORMAL
        | prop::num::f64::ZERO
        | prop::num::f64::INFINITE
        | prop::num::f64::NEGATIVE;
    let few = 0..4usize;
    let lists = (
        prop::collection::vec(floats, few.clone()),
        prop::collection::vec(doubles, few.clone()),
        prop::collection::vec(any::<i32>(), few.clone()),
        prop::collection::vec(bytes(), few.clone()),
        prop::collection::vec(any::<i64>(), few.clone()),
        prop::collection::vec(any::<bool>(), few.clone()),
        prop::collection::vec(any::<u32>(), few.clone()),
        prop::collection::vec(any::<u64>(), few),
    );
    (0..30i32, prop::option::of(shapes()), bytes(), lists).prop_map(
        |(dtype, tensor_shape, tensor_content, lists)| {
            let (
                float_val,
                double_val,
                int_val,
                string_val,
                int64_val,
                bool_val,
                uint32_val,
                uint64_val,
            ) = lists;
            TensorProto {
                dtype,
                tensor_shape,
                tensor_content,
                float_val,
                double_val,
                int_val,
                string_val,
                int64_val,
                bool_val,
                uint32_val,
                uint64_val,
                ..TensorProto::default()
            }
        },
    )
}

fn shapes() -> impl Strategy<Value = TensorShapeProto> {
    let dim = (any::<i64>(), "[a-z\"\\\\é]{0,3}").prop_map(|(size, name)| Dim { size, name });
    let dims = prop::collection::vec(dim, 0..3);
    (dims, any::<bool>()).prop_map(|(dim, unknown_rank)| TensorShapeProto { dim, unknown_rank })
}

fn attrs() -> impl Strategy<Value = AttrValue> {
    let leaf = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..12).prop_map(Value::S),
        any::<i64>().prop_map(Value::I),
        prop::num::f32::NORMAL.prop_map(Value::F),
        any::<bool>().prop_map(Value::B),
        any::<i32>().prop_map(Value::Type),
        (0..130i32).prop_map(Value::Type),
        shapes().prop_map(|shape| Value::Shape(Box::new(shape))),
        tensors().prop_map(|tensor| Value::Tensor(Box::new(tensor))),
        "\\PC{0,5}".prop_map(Value::Placeholder),
    ];
    let leaf = prop::option::of(leaf).prop_map(|value| AttrValue { value });
    leaf.prop_recursive(3, 12, 3, |inner| {
        let func = (
            "[a-z]{1,4}",
            prop::collection::btree_map("\\PC{0,3}", inner, 0..3),
        )
            .prop_map(|(name, attr)| NameAttrList { name, attr });
        prop_oneof![
            func.clone().prop_map(|func| AttrValue {
                value: Some(Value::Func(Box::new(func))),
            }),
            (
                prop::collection::vec(func, 0..3),
                prop::collection::vec(tensors(), 0..3)
            )
                .prop_map(|(func, tensor)| {
                    let list = ListValue {
                        func,
                        tensor,
                        ..ListValue::default()
                    };
                    AttrValue {
                        value: Some(Value::List(Box::new(list))),
                    }
                }),
        ]
    })
}

fn graphs() -> impl Strategy<Value = GraphDef> {
    let attr = prop::collection::btree_map("\\PC{0,6}", attrs(), 0..3);
    let input = prop::collection::vec("[\\^a-z:0-9'\"\n\t]{0,8}", 0..3);
    let node = (
        "\\PC{0,8}",
        "[A-Z][a-z]{0,6}",
        input,
        "[a-z:/0-9]{0,9}",
        attr,
    );
    let node = node.prop_map(
        |(name, op, input, device, attr): (_, _, _, _, BTreeMap<_, _>)| NodeDef {
            name,
            op,
            input,
            device,
            attr,
        },
    );
    let function = prop::option::of("\\PC{0,5}").prop_map(|name| FunctionDef {
        signature: name.map(|name| OpDef { name }),
    });
    let library =
        prop::collection::vec(function, 0..3).prop_map(|function| FunctionDefLibrary { function });
    let versions = (
        any::<i32>(),
        any::<i32>(),
        prop::collection::vec(any::<i32>(), 0..3),
    )
        .prop_map(|(producer, min_consumer, bad_consumers)| VersionDef {
            producer,
            min_consumer,
            bad_consumers,
        });
    let nodes = prop::collection::vec(node, 0..4);
    (
        nodes,
        prop::option::of(library),
        any::<i32>(),
        prop::option::of(versions),
    )
        .prop_map(|(node, library, version, versions)| GraphDef {
            node,
            library,
            version,
            versions,
        })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(def in graphs()) {
        let text = write(&def);
        prop_assert!(text.is_empty() || is_text(text.as_bytes()), "{}", text);
        let again = decode(text.as_bytes()).map_err(|status| TestCaseError::fail(format!("{status:?}\n{text}")))?;
        prop_assert_eq!(again, def, "{}", text);
    }

    #[test]
    fn hostile_text_is_refused_and_no_more(text in HOSTILE) {
        let _ = decode(text.as_bytes());
    }

    #[test]
    fn what_is_cut_short_or_changed_is_refused_or_read(def in graphs(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut text = write(&def).into_bytes();
        if !text.is_empty() {
            let at = at.index(text.len());
            text[at] = byte;
            let _ = decode(&text);
            text.truncate(at);
            let _ = decode(&text);
        }
    }
}
