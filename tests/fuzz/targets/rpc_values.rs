//! Values of remote calls: arguments and results, and the spans that come home. The first byte says of which type.
#![no_main]

use std::collections::{BTreeMap, HashMap};

use libfuzzer_sys::fuzz_target;
use rendez_rpc::parsers::{is_report, value};

/// Values within values, as deep as a worker says.
#[derive(Debug)]
struct Tree {
    name: String,
    below: Vec<Tree>,
}

rendez_rpc::fields!(Tree { name, below });

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 10 {
        0 => drop(value::<Tree>(bytes)),
        1 => drop(value::<Vec<String>>(bytes)),
        2 => drop(value::<BTreeMap<String, Vec<u64>>>(bytes)),
        3 => drop(value::<HashMap<u32, Option<Vec<f32>>>>(bytes)),
        4 => drop(value::<(u8, i64, f64, char, bool)>(bytes)),
        5 => drop(value::<Vec<Vec<Vec<()>>>>(bytes)),
        6 => drop(value::<Option<Option<(u128, i128)>>>(bytes)),
        7 => drop(is_report(bytes)),
        8 => drop(value::<rendez_rpc::RRef<u32>>(bytes)),
        _ => drop(value::<Vec<rendez::Tensor>>(bytes)),
    }
});
