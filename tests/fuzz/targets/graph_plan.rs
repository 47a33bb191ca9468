//! A client that sends any graph of known operations: reading, shapes, gradients, pruning, placing, cutting and
//! planning give an error or a result, and never panic.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rendez::engine::{Config, Engine};
use rendez::ground::{DeviceName, TaskName};
use rendez_dataflow::graph::attr::Kind;
use rendez_dataflow::graph::{
    Builder, Convention, Devices, Endpoints, Graph, Import, Op, Ops, Output, Placing, Shapes,
    gradients, partition, place, prune,
};
use rendez_dataflow::operations::Operations;
use rendez_dataflow::server::executor::{Executor, home};
use rendez_proto::tensorflow::attr_value::{ListValue, Value};
use rendez_proto::tensorflow::tensor_shape_proto::Dim;
use rendez_proto::tensorflow::{
    AttrValue, DataType, GraphDef, NodeDef, TensorProto, TensorShapeProto,
};

const TASKS: [&str; 2] = ["/job:a/replica:0/task:0", "/job:b/replica:0/task:0"];
const NODES_MAX: usize = 24;
const TYPES: [DataType; 8] = [
    DataType::DtFloat,
    DataType::DtFloat,
    DataType::DtInt32,
    DataType::DtInt64,
    DataType::DtBool,
    DataType::DtString,
    DataType::DtResource,
    DataType::DtInvalid,
];
const DIMS: [i64; 8] = [-1, 0, 1, 2, 3, 7, 1 << 40, i64::MAX];
const WORDS: [&str; 8] = ["", "x", "loop", "VALID", "SAME", "NHWC", "n0", "/job:b"];

/// Bytes that say what is in the graph; zeros behind their end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> usize {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        usize::from(first)
    }

    fn of<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.byte() % choice.len()]
    }

    fn int(&mut self) -> i64 {
        match self.byte() {
            byte @ 0..250 => byte as i64 % 9 - 2,
            byte => [i64::MIN, i64::MAX, 1 << 31, -(1 << 31), 1 << 33, 255][byte - 250],
        }
    }

    fn shape(&mut self) -> TensorShapeProto {
        let rank = self.byte() % 5;
        TensorShapeProto {
            unknown_rank: rank == 4,
            dim: (0..rank % 4)
                .map(|_| Dim {
                    size: self.of(&DIMS),
                    ..Dim::default()
                })
                .collect(),
        }
    }

    fn tensor(&mut self) -> TensorProto {
        let dtype = self.of(&TYPES);
        let values = self.byte() % 5;
        TensorProto {
            dtype: dtype as i32,
            tensor_shape: Some(self.shape()),
            float_val: match dtype {
                DataType::DtFloat => vec![1.5; values],
                _ => vec![],
            },
            int_val: match dtype {
                DataType::DtInt32 => (0..values).map(|_| self.int() as i32).collect(),
                _ => vec![],
            },
            ..TensorProto::default()
        }
    }

    fn value(&mut self, kind: Kind) -> Value {
        let many = |script: &mut Self, one: Kind| {
            let mut list = ListValue::default();
            for _ in 0..script.byte() % 4 {
                match script.value(one) {
                    Value::S(text) => list.s.push(text),
                    Value::I(int) => list.i.push(int),
                    Value::Type(dtype) => list.r#type.push(dtype),
                    Value::Shape(shape) => list.shape.push(*shape),
                    _ => {}
                }
            }
            Value::List(Box::new(list))
        };
        match kind {
            Kind::Int => Value::I(self.int()),
            Kind::Float => Value::F(self.int() as f32 / 2.0),
            Kind::Bool => Value::B(self.byte() % 2 == 1),
            Kind::Type => Value::Type(self.of(&TYPES) as i32),
            Kind::Shape => Value::Shape(Box::new(self.shape())),
            Kind::Tensor => Value::Tensor(Box::new(self.tensor())),
            Kind::Strings => many(self, Kind::String),
            Kind::Ints => many(self, Kind::Int),
            Kind::Types => many(self, Kind::Type),
            Kind::Shapes => many(self, Kind::Shape),
            _ => Value::S(self.of(&WORDS).into()),
        }
    }

    fn node(&mut self, index: usize, ops: &[&Arc<Op>]) -> NodeDef {
        let signature = &self.of(ops).signature;
        // Mostly of what is before it; what comes later makes loops, or cycles.
        let input = |script: &mut Self| {
            let from = match script.byte() {
                byte @ 0..240 => byte % index.max(1),
                byte => byte % NODES_MAX,
            };
            match script.byte() {
                0..220 => format!("n{from}"),
                220..245 => format!("n{from}:{}", script.byte() % 3),
                _ => format!("^n{from}"),
            }
        };
        let count = match self.byte() {
            0..250 => signature.inputs.len(),
            byte => byte % 5,
        };
        let mut attr = BTreeMap::new();
        for one in &signature.attrs {
            if self.byte() < 230 {
                let value = Some(self.value(one.kind));
                attr.insert(one.name.to_owned(), AttrValue { value });
            }
        }
        NodeDef {
            name: format!("n{index}"),
            op: signature.op.to_owned(),
            input: (0..count).map(|_| input(self)).collect(),
            device: match self.byte() {
                0..150 => String::new(),
                150..200 => format!("{}/device:CPU:0", TASKS[0]),
                200..250 => format!("{}/device:CPU:0", TASKS[1]),
                _ => self.of(&WORDS).to_owned(),
            },
            attr,
        }
    }
}

/// What plans parts, as a worker does.
fn executor() -> &'static Executor {
    static SITE: OnceLock<(Engine, Executor)> = OnceLock::new();
    let site = SITE.get_or_init(|| {
        let mut config = Config::new("/job:a/task:0");
        (config.shards, config.share_cores, config.control) = (1, true, false);
        let engine = Engine::start(config).expect("an engine");
        let executor = Executor::new(&engine, Arc::new(home(engine.downgrade())));
        let executor = executor.expect("an executor");
        (engine, executor)
    });
    &site.1
}

fn back(graph: Graph, ops: &Ops, script: &mut Script<'_>) {
    let ports = |(node, of): (_, &rendez_dataflow::graph::Node)| {
        (0..of.out_ports().len() as u32).map(move |port| Output { node, port })
    };
    let outputs: Vec<_> = graph.nodes().flat_map(ports).collect();
    if !outputs.is_empty() {
        let (y, x) = (script.of(&outputs), script.of(&outputs));
        let _ = gradients(&mut Builder::extend(ops, graph), &[y], &[x], &[]);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let standard = Operations::standard();
    let ops = standard.ops();
    let known: Vec<_> = ops.iter().collect();
    let mut script = Script(bytes);
    let count = script.byte() % NODES_MAX + 1;
    let def = GraphDef {
        node: (0..count).map(|index| script.node(index, &known)).collect(),
        ..GraphDef::default()
    };
    let import = match script.byte() % 4 {
        0 => Import::Part,
        _ => Import::Client,
    };
    let Ok(mut whole) = Graph::from_def(def, ops, import) else {
        return;
    };
    back(whole.clone(), ops, &mut script);
    let _ = Shapes::of(&whole);
    let _ = executor().plan(&whole, "whole");
    let devices = TASKS.map(|task| {
        (
            format!("{task}/device:CPU:0"),
            rendez::ground::Incarnation(1),
        )
    });
    let devices = Devices::new(devices.iter().map(|(name, life)| (name.as_str(), *life)));
    let devices = devices.expect("two devices");
    let task = TaskName::parse(TASKS[0]).expect("a task");
    let own = devices.find(&DeviceName::cpu(&task)).expect("it is there");
    let placing = Placing {
        soft: script.byte() % 2 == 0,
        kinds: &["CPU"],
        default: own,
    };
    if place(&mut whole, &devices, &placing).is_err() {
        return;
    }
    let mut named = || format!("n{}:{}", script.byte() % count, script.byte() % 8 / 7);
    let endpoints = Endpoints {
        feeds: (0..1).map(|_| named()).collect(),
        fetches: (0..2).map(|_| named()).collect(),
        targets: vec![],
    };
    for endpoints in [
        Endpoints {
            feeds: vec![],
            ..endpoints.clone()
        },
        endpoints,
    ] {
        let device = devices.device(own).expect("it is there");
        for convention in [Convention::Arguments, Convention::Rendezvous] {
            let Ok(pruned) = prune(&whole, ops, &endpoints, (own, device), convention) else {
                continue;
            };
            let Ok(parts) = partition(pruned.graph, &devices, ops, false) else {
                continue;
            };
            for (_, part) in parts {
                // Its own peer made it: whatever it is, it is read again as such.
                let part = Graph::from_def(part, ops, Import::Part).expect("a part that was cut");
                let _ = executor().plan(&part, "part");
            }
        }
    }
});
