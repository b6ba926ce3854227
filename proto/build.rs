//! Generates the tonic code from the `.proto` files, with protox instead of protoc.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "mysqlfleet/agent/v1/agent.proto",
        "mysqlfleet/federation/v1/federation.proto",
        "mysqlfleet/shard/v1/shard.proto",
    ];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    // Channels are made by fleet_runtime::grpc alone; a `connect` of the client itself would take the name of the rpc.
    tonic_prost_build::configure().build_transport(false).out_dir(&out).compile_fds(descriptors)?;
    Ok(())
}
