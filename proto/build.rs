//! Generates the tonic code from the `.proto` files, with protox instead of protoc.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["mysqlfleet/agent/v1/agent.proto", "mysqlfleet/shard/v1/shard.proto"];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure().out_dir(&out).compile_fds(descriptors)?;
    Ok(())
}
