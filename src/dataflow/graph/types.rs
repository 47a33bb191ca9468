//! Types: what flows along an edge, as TensorFlow numbers it: element types, handles, and references to variables.
//!
//! Knows nothing of values. The numbers are those of `DataType`; a reference has its type's number plus 100.

use std::fmt;

use rendez::ground::DType;
use rendez_proto::tensorflow::DataType;

/// What is added to a type's number for a reference to a variable of it.
const REF_OFFSET: i32 = 100;

/// The type of an edge.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Type {
    base: DataType,
    is_ref: bool,
}

impl Type {
    /// A value of type `base`.
    #[must_use]
    pub const fn of(base: DataType) -> Self {
        Self {
            base,
            is_ref: false,
        }
    }

    /// A reference to a variable of type `base`.
    #[must_use]
    pub const fn reference(base: DataType) -> Self {
        Self { base, is_ref: true }
    }

    /// The type of a wire number; `None` for numbers that are none.
    #[must_use]
    pub fn from_wire(number: i32) -> Option<Self> {
        let is_ref = number > REF_OFFSET;
        let base = if is_ref { number - REF_OFFSET } else { number };
        match DataType::try_from(base) {
            Ok(DataType::DtInvalid) | Err(_) => None,
            Ok(base) => Some(Self { base, is_ref }),
        }
    }

    /// The wire number.
    #[must_use]
    pub const fn to_wire(self) -> i32 {
        self.base as i32 + if self.is_ref { REF_OFFSET } else { 0 }
    }

    /// The type of the value, or of the variable that is referred to.
    #[must_use]
    pub const fn base(self) -> DataType {
        self.base
    }

    /// True for a reference.
    #[must_use]
    pub const fn is_ref(self) -> bool {
        self.is_ref
    }

    /// True if a value of this type can flow into an input of type `wanted`: a reference may be read as a value.
    #[must_use]
    pub fn flows_into(self, wanted: Self) -> bool {
        self.base == wanted.base && (self.is_ref || !wanted.is_ref)
    }
}

/// `float`, `int32_ref`: as the original spells types.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reference = if self.is_ref { "_ref" } else { "" };
        write!(f, "{}{reference}", name(self.base))
    }
}

/// The name of a type, as `float`.
#[must_use]
pub fn name(base: DataType) -> &'static str {
    let row = TABLE.iter().find(|row| row.0 == base);
    row.map_or("invalid", |row| row.1)
}

/// The type of a name.
#[must_use]
pub fn parse(name: &str) -> Option<DataType> {
    let row = TABLE.iter().find(|row| row.1 == name);
    row.map(|row| row.0)
}

/// The engine's element type of a graph's type; `None` for handles, variants and quantised numbers.
#[must_use]
pub fn dtype(base: DataType) -> Option<DType> {
    TABLE.iter().find(|row| row.0 == base)?.2
}

/// The graph's type of an engine's element type.
#[must_use]
pub fn data_type(dtype: DType) -> DataType {
    let row = TABLE.iter().find(|row| row.2 == Some(dtype));
    row.map_or(DataType::DtInvalid, |row| row.0)
}

/// Types, what the original calls them, and what they are to the engine.
const TABLE: &[(DataType, &str, Option<DType>)] = &[
    (DataType::DtFloat, "float", Some(DType::F32)),
    (DataType::DtDouble, "double", Some(DType::F64)),
    (DataType::DtInt32, "int32", Some(DType::I32)),
    (DataType::DtUint8, "uint8", Some(DType::U8)),
    (DataType::DtInt16, "int16", Some(DType::I16)),
    (DataType::DtInt8, "int8", Some(DType::I8)),
    (DataType::DtString, "string", Some(DType::String)),
    (DataType::DtComplex64, "complex64", Some(DType::C64)),
    (DataType::DtInt64, "int64", Some(DType::I64)),
    (DataType::DtBool, "bool", Some(DType::Bool)),
    (DataType::DtQint8, "qint8", None),
    (DataType::DtQuint8, "quint8", None),
    (DataType::DtQint32, "qint32", None),
    (DataType::DtBfloat16, "bfloat16", Some(DType::BF16)),
    (DataType::DtQint16, "qint16", None),
    (DataType::DtQuint16, "quint16", None),
    (DataType::DtUint16, "uint16", Some(DType::U16)),
    (DataType::DtComplex128, "complex128", Some(DType::C128)),
    (DataType::DtHalf, "half", Some(DType::F16)),
    (DataType::DtResource, "resource", None),
    (DataType::DtVariant, "variant", None),
    (DataType::DtUint32, "uint32", Some(DType::U32)),
    (DataType::DtUint64, "uint64", Some(DType::U64)),
];
