//! Signatures of functions, read: what types a call has, for programs that know them only when they run.
//!
//! Signatures come from another worker. Reading them has no depth without bound, and what is not known stays a text.

/// A type, as a signature names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Type {
    /// A number, a truth value, a character or a text, by the name that Rust has for it; `()` too.
    Plain(String),
    /// A tensor.
    Tensor,
    /// A reference.
    Reference,
    /// A value or none.
    Option(Box<Self>),
    /// A list.
    List(Box<Self>),
    /// A map.
    Map(Box<Self>, Box<Self>),
    /// Several.
    Tuple(Vec<Self>),
    /// A type of the program's own.
    Other(String),
}

/// The types that [`Type::Plain`] names.
pub const PLAIN: [&str; 18] = [
    "()", "bool", "char", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64",
    "u128", "usize", "f32", "f64", "String",
];

/// Deeper types are not read.
const DEPTH_MAX: usize = 32;

/// A function's name, arguments and result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    text: String,
    name: usize,
    /// Where the names of the arguments' types end.
    end: usize,
    arguments: Vec<Type>,
    result: Type,
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Signature {
    /// Reads `name(A,B,) -> R`.
    ///
    /// ```
    /// use rendez_rpc::{Functions, Signature, Type};
    ///
    /// let functions = Functions::new().add("join", |words: Vec<String>, by: Option<char>| words.len() as u64);
    /// let signature = Signature::parse(functions.signature("join").unwrap()).unwrap();
    /// let plain = |name: &str| Type::Plain(name.into());
    /// let list = Type::List(Box::new(plain("String")));
    /// assert_eq!(signature.arguments(), [list, Type::Option(Box::new(plain("char")))]);
    /// assert_eq!(*signature.result(), plain("u64"));
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.find('(')?;
        let end = text.rfind(") -> ")?;
        let mut rest = text.get(name + 1..end)?;
        let mut arguments = Vec::new();
        while !rest.is_empty() {
            arguments.push(one(&mut rest, 0));
            rest = rest.strip_prefix(',')?;
        }
        let mut result = &text[end + 5..];
        let result = match one(&mut result, 0) {
            read if result.is_empty() => read,
            _ => Type::Other(text[end + 5..].into()),
        };
        Some(Self {
            text: text.into(),
            name,
            end,
            arguments,
            result,
        })
    }

    /// The function's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.text[..self.name]
    }

    /// The types of its arguments.
    #[must_use]
    pub fn arguments(&self) -> &[Type] {
        &self.arguments
    }

    /// The type of its result.
    #[must_use]
    pub const fn result(&self) -> &Type {
        &self.result
    }

    pub(crate) fn arguments_text(&self) -> &str {
        &self.text[self.name + 1..self.end]
    }

    pub(crate) fn result_text(&self) -> &str {
        &self.text[self.end + 5..]
    }
}

/// Reads a type, up to what does not belong to it.
fn one(rest: &mut &str, depth: usize) -> Type {
    let all = *rest;
    if depth < DEPTH_MAX
        && let Some(known) = known(rest, depth)
    {
        return known;
    }
    *rest = all;
    Type::Other(other(rest).into())
}

fn known(rest: &mut &str, depth: usize) -> Option<Type> {
    if let Some(inner) = rest.strip_prefix('(')
        && !inner.starts_with(')')
    {
        *rest = inner;
        let mut all = Vec::new();
        while !rest.starts_with(')') {
            all.push(one(rest, depth + 1));
            *rest = rest.strip_prefix(',')?;
        }
        *rest = &rest[1..];
        return Some(Type::Tuple(all));
    }
    let end = rest.find(['<', '>', ',', '{']).unwrap_or(rest.len());
    let end = match rest.starts_with("()") {
        true => 2,
        false => rest[..end].find([')', '(']).unwrap_or(end),
    };
    let word = &rest[..end];
    *rest = &rest[end..];
    let is_end = rest.is_empty() || rest.starts_with([',', '>', ')']);
    match word {
        "Tensor" if is_end => return Some(Type::Tensor),
        "RRef" if is_end => return Some(Type::Reference),
        plain if is_end && PLAIN.contains(&plain) => return Some(Type::Plain(plain.into())),
        "Option" | "Vec" | "Map" => *rest = rest.strip_prefix('<')?,
        _ => return None,
    }
    let first = Box::new(one(rest, depth + 1));
    let read = match word {
        "Option" => Type::Option(first),
        "Vec" => Type::List(first),
        _ => {
            *rest = rest.strip_prefix(',')?;
            Type::Map(first, Box::new(one(rest, depth + 1)))
        }
    };
    *rest = rest.strip_prefix('>')?;
    Some(read)
}

/// The text of a type that is not known: up to where what is around it goes on.
fn other<'a>(rest: &mut &'a str) -> &'a str {
    let mut open = 0usize;
    let end = rest.find(|character| {
        match character {
            '<' | '(' | '{' | '[' => open += 1,
            '>' | ')' | '}' | ']' if open == 0 => return true,
            '>' | ')' | '}' | ']' => open -= 1,
            ',' => return open == 0,
            _ => {}
        }
        false
    });
    let (text, after) = rest.split_at(end.unwrap_or(rest.len()));
    *rest = after;
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(name: &str) -> Type {
        Type::Plain(name.into())
    }

    #[test]
    fn signatures_are_read_as_functions_write_them() {
        let text =
            "f((i8,Tensor,),Map<String,Vec<f32>>,Batch{images,labels,},RRef,(),) -> Option<()>";
        let signature = Signature::parse(text).expect("a signature");
        assert_eq!(signature.name(), "f");
        let list = Type::List(Box::new(plain("f32")));
        let all = [
            Type::Tuple(vec![plain("i8"), Type::Tensor]),
            Type::Map(Box::new(plain("String")), Box::new(list)),
            Type::Other("Batch{images,labels,}".into()),
            Type::Reference,
            plain("()"),
        ];
        assert_eq!(signature.arguments(), all);
        assert_eq!(*signature.result(), Type::Option(Box::new(plain("()"))));
        assert_eq!(signature.to_string(), text);
        let nothing =
            Signature::parse("g() -> my::Model<3, alloc::string::String>").expect("a signature");
        assert_eq!(nothing.arguments(), []);
        assert_eq!(
            *nothing.result(),
            Type::Other("my::Model<3, alloc::string::String>".into())
        );
    }

    #[test]
    fn what_is_none_or_too_deep_does_no_harm() {
        for text in [
            "",
            "f",
            "f(",
            "f() ->",
            "f(a) -> b",
            "f(Vec<) -> x",
            ")) -> (",
            "(((((((",
            "f(,) -> (",
        ] {
            let _ = Signature::parse(text);
        }
        let deep = format!("f({},) -> {}", "Vec<".repeat(100_000), "(".repeat(100_000));
        let _ = Signature::parse(&deep);
        let deep = format!("f({}u8{},) -> u8", "Vec<".repeat(100), ">".repeat(100));
        assert_eq!(
            Signature::parse(&deep)
                .expect("a signature")
                .arguments()
                .len(),
            1
        );
    }
}
