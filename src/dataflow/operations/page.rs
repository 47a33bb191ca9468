//! The reference page of the operations, `OPERATIONS.md` beside this file, made from their rows.

use super::row::Row;

/// The page, in Markdown.
#[must_use]
pub fn operations_page() -> String {
    let mut rows: Vec<&Row> = super::rows()
        .filter(|row| !row.name.starts_with('_'))
        .collect();
    rows.sort_unstable_by_key(|row| row.name);
    let mut page = format!(
        "The {} operations that graphs may have: each has a kernel here, with TensorFlow's name, inputs, outputs and\n\
         attributes (version 2.21). Operations of your own are registered with\n\
         [`Operations`](crate::operations::Operations).\n\n\
         How to read a row: `x: T` is an input or output `x` of the type that attribute `T` names, `N * T` means\n\
         `N` of them, `Ref(T)` is a variable itself. `num`, `real`, `fp`, `smooth`, `index` and\n\
         `{{float, string}}` are sets of allowed types, `{{'NHWC', 'NCHW'}}` is one of allowed strings; `= …` is\n\
         the value of an attribute that a node leaves out.\n\n\
         | operation | inputs -> outputs | attributes | stateful |\n|---|---|---|---|\n",
        rows.len()
    );
    for row in rows {
        let attrs = match row.attrs {
            "" => String::new(),
            attrs => format!("`{attrs}`"),
        };
        let stateful = if row.is_stateful { "yes" } else { "" };
        let (name, flow) = (row.name, row.flow);
        page += &format!("| `{name}` | `{flow}` | {attrs} | {stateful} |\n");
    }
    page
}
