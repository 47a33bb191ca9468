//! Attributes: the values that configure a node, made and read.
//!
//! Knows the message and nothing of which operation needs which attribute.

use std::collections::BTreeMap;
use std::fmt;

use super::types::Type;
use rendez_proto::tensorflow::attr_value::{ListValue, Value};
use rendez_proto::tensorflow::{AttrValue, DataType, TensorProto, TensorShapeProto};

/// The attributes of a node.
pub type Attrs = BTreeMap<String, AttrValue>;

/// What kind of value an attribute has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Bytes.
    String,
    /// A 64-bit integer.
    Int,
    /// A 32-bit float.
    Float,
    /// A truth value.
    Bool,
    /// A type.
    Type,
    /// A shape.
    Shape,
    /// A tensor.
    Tensor,
    /// Many of [`String`](Self::String).
    Strings,
    /// Many of [`Int`](Self::Int).
    Ints,
    /// Many of [`Type`](Self::Type).
    Types,
    /// Many of [`Shape`](Self::Shape).
    Shapes,
}

impl Kind {
    /// Many of this kind; `None` if no operation has that.
    #[must_use]
    pub const fn list(self) -> Option<Self> {
        match self {
            Self::String => Some(Self::Strings),
            Self::Int => Some(Self::Ints),
            Self::Type => Some(Self::Types),
            Self::Shape => Some(Self::Shapes),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::String => "string",
            Self::Int => "int",
            Self::Float => "float",
            Self::Bool => "bool",
            Self::Type => "type",
            Self::Shape => "shape",
            Self::Tensor => "tensor",
            Self::Strings => "list(string)",
            Self::Ints => "list(int)",
            Self::Types => "list(type)",
            Self::Shapes => "list(shape)",
        })
    }
}

/// True if `value` is of `kind`; an empty list is of every kind of list.
#[must_use]
pub fn is_of(value: &AttrValue, kind: Kind) -> bool {
    let Some(value) = &value.value else {
        return false;
    };
    match (kind, value) {
        (Kind::String, Value::S(_))
        | (Kind::Int, Value::I(_))
        | (Kind::Float, Value::F(_))
        | (Kind::Bool, Value::B(_))
        | (Kind::Type, Value::Type(_))
        | (Kind::Shape, Value::Shape(_))
        | (Kind::Tensor, Value::Tensor(_)) => true,
        (_, Value::List(list)) => {
            let of_kind = match kind {
                Kind::Strings => list.s.len(),
                Kind::Ints => list.i.len(),
                Kind::Types => list.r#type.len(),
                Kind::Shapes => list.shape.len(),
                _ => return false,
            };
            i64::try_from(of_kind) == Ok(list_len(list))
        }
        _ => false,
    }
}

/// Values in a list, of whatever kind.
#[must_use]
pub fn list_len(list: &ListValue) -> i64 {
    let ListValue {
        s,
        i,
        f,
        b,
        r#type,
        shape,
        tensor,
        func,
    } = list;
    let len = s.len() + i.len() + f.len() + b.len() + r#type.len();
    i64::try_from(len + shape.len() + tensor.len() + func.len()).unwrap_or(i64::MAX)
}

/// The integer `name`.
#[must_use]
pub fn int(attrs: &Attrs, name: &str) -> Option<i64> {
    match attrs.get(name)?.value.as_ref()? {
        Value::I(number) => Some(*number),
        _ => None,
    }
}

/// The float `name`.
#[must_use]
pub fn float(attrs: &Attrs, name: &str) -> Option<f32> {
    match attrs.get(name)?.value.as_ref()? {
        Value::F(number) => Some(*number),
        _ => None,
    }
}

/// The truth value `name`.
#[must_use]
pub fn bool(attrs: &Attrs, name: &str) -> Option<bool> {
    match attrs.get(name)?.value.as_ref()? {
        Value::B(truth) => Some(*truth),
        _ => None,
    }
}

/// The text `name`; `None` also if it is not UTF-8.
#[must_use]
pub fn text<'a>(attrs: &'a Attrs, name: &str) -> Option<&'a str> {
    std::str::from_utf8(bytes(attrs, name)?).ok()
}

/// The bytes of the string `name`.
pub(crate) fn bytes<'a>(attrs: &'a Attrs, name: &str) -> Option<&'a [u8]> {
    match attrs.get(name)?.value.as_ref()? {
        Value::S(bytes) => Some(bytes),
        _ => None,
    }
}

/// The type `name`.
#[must_use]
pub fn data_type(attrs: &Attrs, name: &str) -> Option<DataType> {
    types_of(attrs, name).first().copied()
}

/// The shape `name`.
#[must_use]
pub fn shape<'a>(attrs: &'a Attrs, name: &str) -> Option<&'a TensorShapeProto> {
    match attrs.get(name)?.value.as_ref()? {
        Value::Shape(shape) => Some(shape),
        _ => None,
    }
}

/// The tensor `name`.
#[must_use]
pub fn tensor<'a>(attrs: &'a Attrs, name: &str) -> Option<&'a TensorProto> {
    match attrs.get(name)?.value.as_ref()? {
        Value::Tensor(tensor) => Some(tensor),
        _ => None,
    }
}

/// The list `name`, of whatever kind.
#[must_use]
pub fn list<'a>(attrs: &'a Attrs, name: &str) -> Option<&'a ListValue> {
    match attrs.get(name)?.value.as_ref()? {
        Value::List(list) => Some(list),
        _ => None,
    }
}

/// The type or types `name`.
#[must_use]
pub fn types_of(attrs: &Attrs, name: &str) -> Vec<DataType> {
    let numbers: &[i32] = match attrs.get(name).and_then(|value| value.value.as_ref()) {
        Some(Value::Type(number)) => std::slice::from_ref(number),
        Some(Value::List(list)) => &list.r#type,
        _ => &[],
    };
    let types = numbers.iter().filter_map(|&number| Type::from_wire(number));
    types.map(Type::base).collect()
}

/// What can be the value of an attribute.
pub trait IntoAttr {
    /// The value.
    fn into_attr(self) -> AttrValue;
}

macro_rules! into_attr {
    ($($from:ty: $value:ident => $made:expr;)*) => {$(
        impl IntoAttr for $from {
            fn into_attr(self) -> AttrValue {
                let $value = self;
                AttrValue { value: Some($made) }
            }
        }
    )*};
}

into_attr! {
    i64: value => Value::I(value);
    f32: value => Value::F(value);
    bool: value => Value::B(value);
    &str: value => Value::S(value.as_bytes().to_vec());
    String: value => Value::S(value.into_bytes());
    DataType: value => Value::Type(value as i32);
    TensorShapeProto: value => Value::Shape(Box::new(value));
    TensorProto: value => Value::Tensor(Box::new(value));
    Vec<i64>: value => Value::List(Box::new(ListValue { i: value, ..ListValue::default() }));
    Vec<DataType>: value => Value::List(Box::new(ListValue {
        r#type: value.into_iter().map(|base| base as i32).collect(),
        ..ListValue::default()
    }));
    Vec<&str>: value => Value::List(Box::new(ListValue {
        s: value.into_iter().map(|text| text.as_bytes().to_vec()).collect(),
        ..ListValue::default()
    }));
    Vec<TensorShapeProto>: value => Value::List(Box::new(ListValue { shape: value, ..ListValue::default() }));
}

impl IntoAttr for AttrValue {
    fn into_attr(self) -> AttrValue {
        self
    }
}
