//! Generates `proto/generated`: the messages and the services' methods in Rust, out of the proto files beside it. No
//! `protoc` is needed on the machine; and who builds rendez needs no compiler of proto files at all.
//!
//! `cargo run -p rendez-proto-generate` writes the files anew, `… -- check` says which are not up to date.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use prost_reflect::{DescriptorPool, MessageDescriptor, MethodDescriptor, ServiceDescriptor};

/// The extension that holds a method's number.
const NUMBER: &str = "rendez.services.v1.number";

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

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = sources.join("generated");
    let files = generate(&sources)?;
    match std::env::args().nth(1).as_deref() {
        None => {
            for (name, text) in &files {
                std::fs::write(folder.join(name), text)?;
            }
        }
        Some("check") => {
            let mut is_stale = false;
            for (name, text) in &files {
                if std::fs::read_to_string(folder.join(name)).ok().as_ref() != Some(text) {
                    eprintln!(
                        "proto/generated/{name} is not what the proto files say: cargo run -p rendez-proto-generate"
                    );
                    is_stale = true;
                }
            }
            if is_stale {
                return Ok(ExitCode::FAILURE);
            }
        }
        Some(other) => {
            return Err(format!("`{other}` is not understood; there is `check`").into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Each file's name and text.
fn generate(sources: &Path) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut compiler = protox::Compiler::new([sources])?;
    compiler.include_source_info(true).open_files(FILES)?;
    let methods = methods(&compiler.descriptor_pool())?;
    let mut config = prost_build::Config::new();
    // In order of task and of attribute, so that equal clusters and graphs are equal bytes; counters in that of
    // their names.
    config.btree_map([".tensorflow", ".rendez.services"]);
    // A graph has hundreds of thousands of attributes, and few of them are as large as these.
    for large in ["list", "tensor", "shape", "func"] {
        config.boxed(format!(".tensorflow.AttrValue.value.{large}"));
    }
    let folder = std::env::temp_dir().join(format!("rendez-proto-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    config.out_dir(&folder);
    let generated = config
        .compile_fds(compiler.file_descriptor_set())
        .and_then(|()| read(&folder));
    std::fs::remove_dir_all(&folder)?;
    let mut files = generated?;
    files.push(("methods.rs".to_owned(), methods));
    files.push(("SOURCES".to_owned(), sums(sources)?));
    Ok(files)
}

/// The files of messages that the compiler wrote.
fn read(folder: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push((name, std::fs::read_to_string(entry.path())?));
    }
    files.sort();
    Ok(files)
}

/// The sum of each proto file, by which a test finds out that the generated files are older.
fn sums(sources: &Path) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    for file in FILES {
        let bytes = std::fs::read(sources.join(file))?;
        writeln!(text, "{:016x} {file}", fnv(&bytes))?;
    }
    Ok(text)
}

/// The hash of Fowler, Noll and Vo, variant 1a, of 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
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
