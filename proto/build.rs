//! Compiles the messages in Rust, so that no `protoc` need be on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FILES: [&str; 3] = [
        "proto/rendez.proto",
        "proto/services.proto",
        "proto/cluster.proto",
    ];
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["proto"])?;
    prost_build::Config::new()
        // In order of task, so that equal clusters are equal bytes; counters in that of their names.
        .btree_map([".tensorflow", ".rendez.services"])
        .compile_fds(descriptors)?;
    Ok(())
}
