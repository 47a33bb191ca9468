//! Compiles the messages and the services' methods in Rust: no `protoc` is needed on the machine.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;

use prost_reflect::{DescriptorPool, MessageDescriptor, MethodDescriptor, ServiceDescriptor};

/// The extension that holds a method's number.
const NUMBER: &str = "rendez.services.v1.number";

fn main() -> Result<(), Box<dyn Error>> {
    const FILES: [&str; 8] = [
        "rendez.proto",
        "methods.proto",
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
    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_source_info(true).open_files(FILES)?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(
        out.join("methods.rs"),
        methods(&compiler.descriptor_pool())?,
    )?;
    let mut config = prost_build::Config::new();
    // In order of task and of attribute, so that equal clusters and graphs are equal bytes; counters in that of
    // their names.
    config.btree_map([".tensorflow", ".rendez.services"]);
    // A graph has hundreds of thousands of attributes, and few of them are as large as these.
    for large in ["list", "tensor", "shape", "func"] {
        config.boxed(format!(".tensorflow.AttrValue.value.{large}"));
    }
    config.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// A module for each service, with a type for each of its methods.
fn methods(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let number = pool
        .get_extension_by_name(NUMBER)
        .ok_or("no option for numbers")?;
    let mut text = String::new();
    for service in pool.services() {
        let mut taken = BTreeMap::new();
        writeln!(
            text,
            "/// {}",
            comment(&service.parent_file(), service.path())
        )?;
        writeln!(text, "pub mod {} {{", module(&service))?;
        for method in service.methods() {
            let options = method.options();
            let value = options.get_extension(&number).as_u32().unwrap_or_default();
            if value == 0 {
                return Err(format!("{} has no number", method.full_name()).into());
            }
            if let Some(other) = taken.insert(value, method.full_name().to_owned()) {
                let which = format!("{} and {other} have the same number", method.full_name());
                return Err(which.into());
            }
            write_method(&mut text, &method, value)?;
        }
        writeln!(text, "}}")?;
    }
    Ok(text)
}

fn write_method(text: &mut String, method: &MethodDescriptor, number: u32) -> std::fmt::Result {
    let name = method.name();
    writeln!(
        text,
        "/// {}",
        comment(&method.parent_file(), method.path())
    )?;
    writeln!(text, "#[derive(Clone, Copy, Debug)] pub enum {name} {{}}")?;
    writeln!(text, "impl crate::Method for {name} {{")?;
    writeln!(text, "const NUMBER: u32 = {number};")?;
    writeln!(text, "const NAME: &'static str = \"{name}\";")?;
    writeln!(text, "type Request = {};", rust_type(&method.input()))?;
    writeln!(text, "type Answer = {};", rust_type(&method.output()))?;
    writeln!(text, "}}")
}

/// What is written above a service or a method.
fn comment(file: &prost_reflect::FileDescriptor, path: &[i32]) -> String {
    let file = file.file_descriptor_proto();
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    let location = locations.into_iter().find(|location| location.path == path);
    let above = location.map(|location| location.leading_comments().trim());
    above
        .unwrap_or_default()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// `WorkerSession` is `worker_session`.
fn module(service: &ServiceDescriptor) -> String {
    let mut name = String::new();
    for symbol in service.name().chars() {
        if symbol.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(symbol.to_ascii_lowercase());
    }
    name
}

fn rust_type(message: &MessageDescriptor) -> String {
    let module = match message.package_name() {
        "rendez.services.v1" => "services",
        "rendez.v1" => "v1",
        package => package,
    };
    format!("crate::{module}::{}", message.name())
}
