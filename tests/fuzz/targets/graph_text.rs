//! Any bytes as a graph, in either format: no panic, and what is read is a graph in the binary format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use rendez_dataflow::graph::decode;
use rendez_proto::tensorflow::GraphDef;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(def) = decode(bytes) {
        let binary = def.encode_to_vec();
        // Not by `decode`, which may take a binary graph for text where a node has no operation.
        let again = GraphDef::decode(&*binary).expect("what was read is a graph");
        // Not compared as messages: NaN is not NaN.
        assert_eq!(again.encode_to_vec(), binary);
    }
});
