//! Signatures: what an operation takes, gives and is configured by, read from one line of the table of operations.
//!
//! Knows nothing of nodes but their attributes: from those it tells how many inputs and outputs of which types a node
//! has. The words are those of TensorFlow's operation definitions:
//!
//! ```text
//! inputs -> outputs     a: T, b: Ref(T), axis: Index, rest: N * T, all: Ts
//! attributes            T: num; N: int >= 1; Ts: list(type); axis: int = 0
//! ```
//!
//! A type is one of TensorFlow's names or the name of an attribute. `num`, `real`, `fp`, `index` and `{float, string}`
//! are sets of allowed types, and `{'NHWC', 'NCHW'}` is one of allowed strings.

use super::attr::{self, Attrs, Kind};
use super::errors;
use super::types::{self, Type};
use rendez::ground::limits::GRAPH_OUTPUTS_PER_NODE_MAX;
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::attr_value::{ListValue, Value};
use rendez_proto::tensorflow::{AttrValue, DataType, TensorShapeProto};

/// An input or an output.
#[derive(Clone, Debug)]
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// What flows there.
    what: ArgType,
    /// How often it is repeated: an attribute.
    count: Option<&'static str>,
    is_ref: bool,
}

#[derive(Clone, Debug)]
enum ArgType {
    Fixed(DataType),
    /// An attribute: one type, or a list of them.
    Attr(&'static str),
}

/// An attribute.
#[derive(Clone, Debug)]
pub struct Attr {
    /// Its name.
    pub name: &'static str,
    /// What kind of value it has.
    pub kind: Kind,
    /// Its value where a node has none.
    default: Option<AttrValue>,
    allowed: Vec<DataType>,
    allowed_texts: Vec<&'static str>,
    minimum: Option<i64>,
}

/// What an operation takes, gives and is configured by.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The operation's name.
    pub op: &'static str,
    /// Its inputs.
    pub inputs: Vec<Arg>,
    /// Its outputs.
    pub outputs: Vec<Arg>,
    /// Its attributes.
    pub attrs: Vec<Attr>,
}

/// One input or output of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// What flows there.
    pub what: Type,
}

impl Signature {
    /// Reads a line of the table; `None` if it is not one.
    #[must_use]
    pub fn parse(op: &'static str, flow: &'static str, attrs: &'static str) -> Option<Self> {
        let (inputs, outputs) = flow.split_once("->")?;
        Some(Self {
            op,
            inputs: list(inputs, ',').map(arg).collect::<Option<_>>()?,
            outputs: list(outputs, ',').map(arg).collect::<Option<_>>()?,
            attrs: list(attrs, ';').map(parse_attr).collect::<Option<_>>()?,
        })
    }

    /// Checks the attributes of `node` and sets those that have a default and are missing.
    ///
    /// # Errors
    /// `GRAPH_ATTR` for an attribute that is missing, unknown, or has a value of another kind or one that is not
    /// allowed.
    pub fn complete(&self, node: &str, attrs: &mut Attrs) -> Result<(), Status> {
        for (name, value) in attrs.iter() {
            // What begins with an underscore is said to others than the operation.
            if name.starts_with('_') {
                continue;
            }
            let Some(known) = self.attrs.iter().find(|attr| attr.name == name) else {
                let what = format!(
                    "NodeDef mentions attribute '{name}' that Op<{}> has not",
                    self.op
                );
                return Err(errors::at_node(catalogue::GRAPH_ATTR, node, self.op, &what));
            };
            known
                .check(value)
                .map_err(|what| errors::at_node(catalogue::GRAPH_ATTR, node, self.op, &what))?;
        }
        for attr in &self.attrs {
            if attrs.contains_key(attr.name) {
                continue;
            }
            let Some(default) = &attr.default else {
                let what = format!("NodeDef missing attr '{}' from Op<{}>", attr.name, self.op);
                return Err(errors::at_node(catalogue::GRAPH_ATTR, node, self.op, &what));
            };
            attrs.insert(attr.name.to_owned(), default.clone());
        }
        Ok(())
    }

    /// The inputs of a node with these attributes, which were [completed](Self::complete).
    ///
    /// # Errors
    /// `GRAPH_LIMIT` if they are too many.
    pub fn input_ports(&self, node: &str, attrs: &Attrs) -> Result<Vec<Port>, Status> {
        self.ports(node, &self.inputs, attrs)
    }

    /// The outputs of a node with these attributes, which were [completed](Self::complete).
    ///
    /// # Errors
    /// `GRAPH_LIMIT` if they are too many.
    pub fn output_ports(&self, node: &str, attrs: &Attrs) -> Result<Vec<Port>, Status> {
        self.ports(node, &self.outputs, attrs)
    }

    /// The attribute of that name.
    #[must_use]
    pub fn attr(&self, name: &str) -> Option<&Attr> {
        self.attrs.iter().find(|attr| attr.name == name)
    }

    fn ports(&self, node: &str, args: &[Arg], attrs: &Attrs) -> Result<Vec<Port>, Status> {
        let mut ports = Vec::with_capacity(args.len());
        for arg in args {
            let types = match &arg.what {
                ArgType::Fixed(base) => vec![*base],
                ArgType::Attr(name) => attr::types_of(attrs, name),
            };
            let times = arg.count.map_or(Some(1), |count| {
                usize::try_from(attr::int(attrs, count).unwrap_or(0)).ok()
            });
            let times = times.filter(|&times| {
                times.saturating_mul(types.len()) <= GRAPH_OUTPUTS_PER_NODE_MAX - ports.len()
            });
            let Some(times) = times else {
                let what = format!(
                    "more than {GRAPH_OUTPUTS_PER_NODE_MAX} tensors go in or out at '{}'",
                    arg.name
                );
                return Err(errors::at_node(
                    catalogue::GRAPH_LIMIT,
                    node,
                    self.op,
                    &what,
                ));
            };
            for _ in 0..times {
                ports.extend(types.iter().map(|&base| arg.port(base)));
            }
        }
        Ok(ports)
    }
}

impl Arg {
    fn port(&self, base: DataType) -> Port {
        let what = if self.is_ref {
            Type::reference(base)
        } else {
            Type::of(base)
        };
        Port { what }
    }

    /// The attribute that says how often this is repeated.
    #[must_use]
    pub const fn count_attr(&self) -> Option<&'static str> {
        self.count
    }

    /// The attribute that says its type or types.
    #[must_use]
    pub const fn type_attr(&self) -> Option<&'static str> {
        match self.what {
            ArgType::Fixed(_) => None,
            ArgType::Attr(name) => Some(name),
        }
    }
}

impl Attr {
    /// Its value where a node has none.
    #[must_use]
    pub const fn default(&self) -> Option<&AttrValue> {
        self.default.as_ref()
    }

    fn check(&self, value: &AttrValue) -> Result<(), String> {
        if !attr::is_of(value, self.kind) {
            return Err(format!("attr '{}' is not of kind {}", self.name, self.kind));
        }
        let types: &[i32] = match &value.value {
            Some(Value::Type(number)) => std::slice::from_ref(number),
            Some(Value::List(list)) => &list.r#type,
            _ => &[],
        };
        for &number in types {
            let known = Type::from_wire(number).filter(|known| !known.is_ref());
            let allowed = known
                .filter(|known| self.allowed.is_empty() || self.allowed.contains(&known.base()));
            if allowed.is_none() {
                let names: Vec<_> = self.allowed.iter().map(|&base| types::name(base)).collect();
                let value = known.map_or_else(|| number.to_string(), |known| known.to_string());
                return Err(format!(
                    "Value for attr '{}' of {value} is not in the list of allowed values: {}",
                    self.name,
                    names.join(", ")
                ));
            }
        }
        if let Some(Value::S(text)) = &value.value
            && !self.allowed_texts.is_empty()
            && !self
                .allowed_texts
                .iter()
                .any(|known| known.as_bytes() == text)
        {
            let known: Vec<_> = self
                .allowed_texts
                .iter()
                .map(|known| format!("{known:?}"))
                .collect();
            return Err(format!(
                "Value for attr '{}' of {:?} is not in the list of allowed values: {}",
                self.name,
                String::from_utf8_lossy(text),
                known.join(", ")
            ));
        }
        let count = match &value.value {
            Some(Value::I(number)) => *number,
            Some(Value::List(list)) => attr::list_len(list),
            _ => i64::MAX,
        };
        match self.minimum {
            Some(minimum) if count < minimum => Err(format!(
                "Value for attr '{}' of {count} must be at least minimum {minimum}",
                self.name
            )),
            _ => Ok(()),
        }
    }
}

fn list(text: &'static str, separator: char) -> impl Iterator<Item = &'static str> {
    let mut depth = 0i32;
    text.split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == separator && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn arg(text: &'static str) -> Option<Arg> {
    let (name, what) = text.split_once(':')?;
    let what = what.trim();
    let (count, what) = what.split_once('*').map_or((None, what), |(count, what)| {
        (Some(count.trim()), what.trim())
    });
    let inner = what
        .strip_prefix("Ref(")
        .and_then(|what| what.strip_suffix(')'));
    let what_name = inner.unwrap_or(what);
    Some(Arg {
        name: name.trim(),
        what: types::parse(what_name).map_or(ArgType::Attr(what_name), ArgType::Fixed),
        count,
        is_ref: inner.is_some(),
    })
}

fn parse_attr(text: &'static str) -> Option<Attr> {
    let (name, rest) = text.split_once(':')?;
    let (rest, default) = rest
        .split_once(" = ")
        .map_or((rest, None), |(rest, default)| (rest, Some(default.trim())));
    let (kind, minimum) = rest
        .split_once(">=")
        .map_or((rest, None), |(kind, minimum)| (kind, Some(minimum.trim())));
    let allowed_texts = texts_of(kind.trim()).unwrap_or_default();
    let (kind, allowed) = match allowed_texts.as_slice() {
        [] => kind_of(kind.trim())?,
        _ => (Kind::String, vec![]),
    };
    let minimum = match minimum {
        None => None,
        Some(minimum) => Some(minimum.parse().ok()?),
    };
    let default = match default {
        None => None,
        Some(text) => Some(default_of(kind, text)?),
    };
    Some(Attr {
        name: name.trim(),
        kind,
        default,
        allowed,
        allowed_texts,
        minimum,
    })
}

/// The strings of a set of such.
fn texts_of(set: &'static str) -> Option<Vec<&'static str>> {
    let set = set.strip_prefix('{')?.strip_suffix('}')?;
    let texts = set.split(',').map(|text| {
        let text = text.trim().strip_prefix('\'')?;
        text.strip_suffix('\'')
    });
    texts.collect()
}

fn kind_of(text: &str) -> Option<(Kind, Vec<DataType>)> {
    let inner = text
        .strip_prefix("list(")
        .and_then(|text| text.strip_suffix(')'));
    let (kind, allowed) = match inner.unwrap_or(text) {
        "string" => (Kind::String, vec![]),
        "int" => (Kind::Int, vec![]),
        "float" => (Kind::Float, vec![]),
        "bool" => (Kind::Bool, vec![]),
        "shape" => (Kind::Shape, vec![]),
        "tensor" => (Kind::Tensor, vec![]),
        "type" => (Kind::Type, vec![]),
        "fp" => (Kind::Type, FP.to_vec()),
        "index" => (Kind::Type, vec![DataType::DtInt32, DataType::DtInt64]),
        "real" => (Kind::Type, [FP, INT].concat()),
        "num" => (Kind::Type, [FP, INT, COMPLEX].concat()),
        "smooth" => (Kind::Type, [FP, COMPLEX].concat()),
        set => {
            let set = set.strip_prefix('{')?.strip_suffix('}')?;
            let types = set.split(',').map(|name| types::parse(name.trim()));
            (Kind::Type, types.collect::<Option<_>>()?)
        }
    };
    let kind = if inner.is_some() { kind.list()? } else { kind };
    Some((kind, allowed))
}

fn default_of(kind: Kind, text: &str) -> Option<AttrValue> {
    let value = match kind {
        Kind::String => Value::S(text.trim_matches('\'').as_bytes().to_vec()),
        Kind::Int => Value::I(text.parse().ok()?),
        Kind::Float => Value::F(text.parse().ok()?),
        Kind::Bool => Value::B(text.parse().ok()?),
        Kind::Type => Value::Type(types::parse(text)? as i32),
        Kind::Shape if text == "?" => Value::Shape(Box::new(TensorShapeProto {
            unknown_rank: true,
            ..TensorShapeProto::default()
        })),
        _ if text == "[]" => Value::List(Box::default()),
        Kind::Ints => Value::List(Box::new(ListValue {
            i: vec![text.parse().ok()?],
            ..ListValue::default()
        })),
        _ => return None,
    };
    Some(AttrValue { value: Some(value) })
}

const FP: &[DataType] = &[
    DataType::DtFloat,
    DataType::DtDouble,
    DataType::DtHalf,
    DataType::DtBfloat16,
];
const INT: &[DataType] = &[
    DataType::DtInt8,
    DataType::DtInt16,
    DataType::DtInt32,
    DataType::DtInt64,
    DataType::DtUint8,
    DataType::DtUint16,
    DataType::DtUint32,
    DataType::DtUint64,
];
const COMPLEX: &[DataType] = &[DataType::DtComplex64, DataType::DtComplex128];
