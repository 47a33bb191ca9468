//! Operations of one's own: registered, refused, run by a session in one process, and failing by themselves alone.

use crate::graph::{Builder, Definition, Node, Shapes, attr, floats, gradients};
use crate::kernel::Call;
use crate::kernel::Kernel;
use crate::operations::Operations;
use crate::server::{Session, testing};
use rendez::ground::{Code, Status, catalogue};

/// `y = by × x`; panics if `by` is zero, and says that it is costly by a panic if that is negative.
#[derive(Debug)]
struct Scale(f32);

impl Kernel for Scale {
    fn compute(&self, call: &mut Call<'_>) -> Result<(), Status> {
        assert!(self.0 != 0.0, "a user's kernel breaks down");
        let x = call.inputs[0].tensor()?;
        let mut y = call.home.allocate(x.meta())?;
        for (y, x) in y
            .as_mut_slice::<f32>()?
            .iter_mut()
            .zip(x.as_slice::<f32>()?)
        {
            *y = self.0 * x;
        }
        call.outputs.push(y.finish().into());
        Ok(())
    }

    fn is_costly(&self, _: &[crate::kernel::Value]) -> bool {
        assert!(self.0 >= 0.0, "it does not know how long it takes");
        false
    }
}

fn scale() -> Definition {
    Definition::new("Scale", "x: float -> y: float", "by: float")
        .shapes(|inputs, _| Ok(inputs.to_vec()))
}

fn make(node: &Node) -> Result<Box<dyn Kernel>, Status> {
    let by = attr::float(&node.attrs, "by").unwrap_or(1.0);
    assert!(by < 1000.0, "what makes kernels breaks down");
    Ok(Box::new(Scale(by)))
}

fn operations() -> Operations {
    let mut operations = Operations::standard();
    operations.register(scale(), make).unwrap();
    operations
}

fn session(operations: &Operations) -> Session {
    let config = testing::config("/job:localhost/task:0");
    Session::local_of(config, operations.clone()).unwrap()
}

fn scaled(operations: &Operations, by: f32) -> rendez_proto::tensorflow::GraphDef {
    let mut graph = Builder::new(operations.ops());
    let x = graph.constant("x", floats(&[2], &[1.0, 2.0])).unwrap();
    let y = graph.node("Scale").name("y").input(x).attr("by", by);
    y.build().unwrap();
    graph.finish().unwrap().to_def()
}

fn outcome(by: f32) -> Result<Vec<f32>, Status> {
    let operations = operations();
    let session = session(&operations);
    session.create(scaled(&operations, by))?;
    let fetched = session.run(&[], &["y"], &[])?;
    Ok(fetched[0].to_vec()?)
}

#[test]
fn an_operation_of_ones_own_runs_in_a_session() {
    assert_eq!(outcome(3.0).unwrap(), [3.0, 6.0]);
}

#[test]
fn a_panic_of_ones_own_fails_the_step_and_nothing_else() {
    for by in [0.0, 2000.0] {
        let failed = outcome(by).unwrap_err();
        assert_eq!(failed.reason(), catalogue::KERNEL_FAILED, "{failed}");
    }
    // The kernel runs, though its answer to how long it takes is a panic.
    assert_eq!(outcome(-2.0).unwrap(), [-2.0, -4.0]);
}

#[test]
fn a_session_without_the_operation_refuses_it_by_name() {
    let graph = scaled(&operations(), 2.0);
    let refused = session(&Operations::standard()).create(graph).unwrap_err();
    assert_eq!(refused.reason(), catalogue::GRAPH_OP_UNKNOWN);
    assert!(refused.message().contains("'Scale'"), "{refused}");
}

#[test]
fn names_that_are_taken_and_definitions_that_make_no_sense_are_refused() {
    let mut operations = operations();
    let mut refused = |definition: Definition| {
        let before = operations.ops().iter().count();
        let refused = operations.register(definition, make).unwrap_err();
        assert_eq!(operations.ops().iter().count(), before);
        refused
    };
    assert_eq!(refused(scale()).code(), Code::AlreadyExists);
    let standard = Definition::new("MatMul", "x: float -> y: float", "");
    assert_eq!(refused(standard).reason(), catalogue::OP_EXISTS);
    for (name, flow, attrs) in [
        ("scale", "x: float -> y: float", ""),
        ("_Scale", "x: float -> y: float", ""),
        ("", "x: float -> y: float", ""),
        ("Own", "x: float", ""),
        ("Own", "x -> y", ""),
        ("Own", "x: T -> y: T", ""),
        ("Own", "x: N * float -> y: float", "M: int"),
        ("Own", "x: float -> y: float", "by: number"),
    ] {
        let refused = refused(Definition::new(name, flow, attrs));
        assert_eq!(refused.reason(), catalogue::OP_MALFORMED, "{name}: {flow}");
        assert!(refused.message().contains(name), "{refused}");
    }
}

#[test]
fn a_shape_rule_of_ones_own_is_obeyed_and_not_trusted() {
    let shapes = |definition: Definition| {
        let mut operations = Operations::standard();
        operations.register(definition, make).unwrap();
        let mut graph = Builder::new(operations.ops());
        let x = graph.constant("x", floats(&[2], &[1.0, 2.0])).unwrap();
        let y = graph.node("Scale").input(x).attr("by", 2.0_f32);
        let y = y.build().unwrap();
        let shapes = Shapes::of(graph.graph()).map_err(|status| status.message().to_owned())?;
        Ok::<_, String>(shapes.output(y).unwrap().to_string())
    };
    assert_eq!(shapes(scale()).unwrap(), "[2]");
    for (rule, what) in [
        (
            scale().shapes(|_, _| Ok(vec![])),
            "gave 0 shapes for 1 outputs",
        ),
        (
            scale().shapes(|_, _| Err("by too much".into())),
            "by too much",
        ),
        (
            scale().shapes(|_, _| panic!("no rule")),
            "its shape rule panicked",
        ),
    ] {
        let refused = shapes(rule).unwrap_err();
        assert!(refused.contains(what), "{refused}");
    }
}

/// `Scale` with its gradient, which is scaled by the same.
fn smooth_scale() -> Definition {
    scale().gradient(|back| {
        let (dy, by) = (back.grad(0)?, attr::float(back.attrs(), "by"));
        let dx = back.op_with("Scale", &[dy], |node| node.attr("by", by.unwrap_or(1.0)))?;
        Ok(vec![Some(dx)])
    })
}

/// The operations with this one, and a graph of `Square(Scale(x))` with its gradient by `x`, called `dx`.
fn differentiated(definition: Definition) -> Result<(Operations, Builder), Status> {
    let mut operations = Operations::standard();
    operations.register(definition, make)?;
    let mut graph = Builder::new(operations.ops());
    let x = graph.constant("x", floats(&[2], &[1.0, 2.0]))?;
    let y = graph.node("Scale").name("y").input(x).attr("by", 3.0_f32);
    let y = y.build()?;
    let z = graph.node("Square").input(y).build()?;
    let flows = gradients(&mut graph, &[z], &[x], &[])?;
    let dx = graph.node("Identity").name("dx");
    dx.input(flows[0].expect("it depends")).build()?;
    Ok((operations, graph))
}

#[test]
fn gradients_flow_back_through_an_operation_of_ones_own() {
    let (operations, graph) = differentiated(smooth_scale()).unwrap();
    let session = session(&operations);
    session.create(graph.finish().unwrap().to_def()).unwrap();
    // z = 9 x², and changes by 18 x.
    let fetched = session.run(&[], &["dx"], &[]).unwrap();
    assert_eq!(fetched[0].as_slice::<f32>().unwrap(), [18.0, 36.0]);
}

#[test]
fn a_gradient_rule_of_ones_own_is_not_trusted() {
    let no_rule = scale();
    let refusing = scale().gradient(|back| Err(back.refuse("is not smooth")));
    let panicking = scale().gradient(|_| panic!("no rule"));
    let empty = scale().gradient(|_| Ok(vec![]));
    let of_another_type = scale().gradient(|back| {
        let dy = back.grad(0)?;
        Ok(vec![Some(back.op("Shape", &[dy])?)])
    });
    let not_there = scale().gradient(|back| Ok(vec![Some(back.output(7))]));
    for (definition, what) in [
        (no_rule, "it has no gradient here"),
        (refusing, "it is not smooth"),
        (panicking, "it has a gradient rule that panicked"),
        (empty, "gave 0 gradients for 1 inputs"),
        (of_another_type, "of type int32 for input 0, which is float"),
        (not_there, "for input 0"),
    ] {
        let refused = differentiated(definition).unwrap_err();
        assert_eq!(refused.reason(), catalogue::GRAPH_GRADIENT, "{refused}");
        let begin = "No gradient defined for operation 'y' (op type: Scale): ";
        assert!(refused.message().starts_with(begin), "{refused}");
        assert!(refused.message().contains(what), "{refused}");
    }
}
