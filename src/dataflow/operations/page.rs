//! The reference page of the operations, `OPERATIONS.md` beside this file, made from their rows.

use super::row::Row;
use super::{Operations, types};
use rendez::ground::limits::GRAPH_OUTPUTS_PER_NODE_MAX;

/// The page, in Markdown.
#[must_use]
pub fn operations_page() -> String {
    let mut rows: Vec<&Row> = super::rows()
        .filter(|row| !row.name.starts_with('_'))
        .collect();
    rows.sort_unstable_by_key(|row| row.name);
    let operations = Operations::standard();
    let most = GRAPH_OUTPUTS_PER_NODE_MAX;
    let mut page = format!(
        "The {} operations that graphs may have, with TensorFlow's name, inputs, outputs and\n\
         attributes (version 2.21). Operations of your own are registered with\n\
         [`Operations`](crate::operations::Operations).\n\n\
         How to read a row: `x: T` is an input or output `x` of the type that attribute `T` names, `N * T` means\n\
         `N` of them, `Ref(T)` is a variable itself. `num`, `real`, `fp`, `smooth`, `index` and\n\
         `{{float, string}}` are sets of allowed types, `{{'NHWC', 'NCHW'}}` is one of allowed strings; `= …` is\n\
         the value of an attribute that a node leaves out. If only some types that an attribute allows have a\n\
         kernel here, they are listed; a node of another type is refused when a step needs it\n\
         (`KERNEL_UNKNOWN`). A node has at most {most} inputs and at most {most} outputs.\n\n\
         | operation | inputs -> outputs | attributes | kernels | stateful |\n|---|---|---|---|---|\n",
        rows.len()
    );
    for row in rows {
        let attrs = match row.attrs {
            "" => String::new(),
            attrs => format!("`{attrs}`"),
        };
        let stateful = if row.is_stateful { "yes" } else { "" };
        let (name, flow) = (row.name, row.flow);
        let op = operations.ops().find(name, name).ok();
        let known = op
            .zip(row.kernel)
            .and_then(|(op, make)| types::with_kernels(op, make));
        let kernels = known.map_or_else(String::new, |(attr, known)| {
            format!("`{attr}`: {}", known.join(", "))
        });
        page += &format!("| `{name}` | `{flow}` | {attrs} | {kernels} | {stateful} |\n");
    }
    page
}
