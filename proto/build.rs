//! Compiles `rendez.proto` in Rust, so that no `protoc` need be on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/rendez.proto");
    let descriptors = protox::compile(["proto/rendez.proto"], ["proto"])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
