//! Gives the shared library its soname. Programs are bound to it when they are linked; it changes
//! when old programs no longer work with the library, and with it `ABI` in scripts/install.sh.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbpfof.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
