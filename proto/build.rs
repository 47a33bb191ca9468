//! Compiles the messages in Rust: no `protoc` is needed on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FILES: [&str; 7] = [
        "rendez.proto",
        "services.proto",
        "cluster.proto",
        "graph.proto",
        "session.proto",
        "worker.proto",
        "master.proto",
    ];
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    let mut config = prost_build::Config::new();
    // In order of task and of attribute, so that equal clusters and graphs are equal bytes; counters in that of
    // their names.
    config.btree_map([".tensorflow", ".rendez.services"]);
    // A graph has hundreds of thousands of attributes, and few of them are as large as these.
    for large in ["list", "tensor", "shape", "func"] {
        config.boxed(format!(".tensorflow.AttrValue.value.{large}"));
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
