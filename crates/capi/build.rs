//! Gives the shared library its soname, which programs record when they are linked. It changes when
//! old programs no longer work with the library; `ABI` in scripts/install.sh must then change too.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbpfof.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
