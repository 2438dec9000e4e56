//! Compiles the contracts under `proto/` without protoc, and generates what prost cannot: a `Debug` that obeys the
//! contract's `csi_secret` option, the table by which calls are logged, and, for the tests, one printer per message.

use std::{env, error::Error, fmt::Write as _, fs, path::PathBuf};

use protox::prost_reflect::{
    DescriptorPool, ExtensionDescriptor, FieldDescriptor, Kind, MessageDescriptor, ServiceDescriptor, Value,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const FILES: [&str; 2] = ["csi/v1/csi.proto", "pluginregistration/v1/api.proto"];

/// Proto package and the module of this crate that holds its types.
const PACKAGES: [(&str, &str); 2] = [("csi.v1", "v1"), ("pluginregistration", "registration")];

fn main() -> Result<()> {
    let protos = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", protos.display());

    let mut compiler = protox::Compiler::new([&protos])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;

    // prost-types forgets extensions; only the reflected pool still knows the custom options.
    let pool = compiler.descriptor_pool();
    let secret = pool.get_extension_by_name("csi.v1.csi_secret").ok_or("csi.proto no longer declares csi_secret")?;
    let messages: Vec<_> = pool.all_messages().filter(|m| module_of(m).is_some() && !m.is_map_entry()).collect();
    let guarded: Vec<_> = messages.iter().filter(|m| m.fields().any(|f| is_secret(&f, &secret))).collect();

    let mut debug = String::new();
    for message in &guarded {
        write_debug(&mut debug, message, &secret)?;
    }
    fs::write(out.join("csi.v1.debug.rs"), debug)?;
    fs::write(out.join("printers.rs"), printers(&messages)?)?;
    fs::write(out.join("calls.rs"), calls(&pool, &secret)?)?;
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;

    tonic_prost_build::configure()
        // Clients run over our own Channel, so nothing here needs tonic's.
        .build_transport(false)
        // CSI wants UNIMPLEMENTED from every RPC a driver leaves out.
        .generate_default_stubs(true)
        // Ordered maps: the same request prints and encodes the same way every time.
        .btree_map(".")
        .skip_debug(guarded.iter().map(|m| format!(".{}", m.full_name())))
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

fn is_secret(field: &FieldDescriptor, secret: &ExtensionDescriptor) -> bool {
    matches!(field.options().get_extension(secret).as_ref(), Value::Bool(true))
}

/// prost leaves `Debug` out for messages listed in `skip_debug`, so one that is not written here fails the build.
fn write_debug(out: &mut String, message: &MessageDescriptor, secret: &ExtensionDescriptor) -> Result<()> {
    let name = message.full_name();
    if message.parent_message().is_some() || message.oneofs().next().is_some() {
        return Err(format!("{name}: build.rs redacts only top-level messages without oneof; teach it this one").into());
    }
    writeln!(out, "impl ::core::fmt::Debug for {} {{", message.name())?;
    writeln!(out, "    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{")?;
    writeln!(out, "        f.debug_struct({:?})", message.name())?;
    for field in message.fields() {
        let field_name = field.name();
        let shown = if is_secret(&field, secret) {
            format!("&crate::redact::Redacted(&self.{field_name})")
        } else {
            format!("&self.{field_name}")
        };
        writeln!(out, "            .field({field_name:?}, {shown})")?;
    }
    writeln!(out, "            .finish()\n    }}\n}}\n")?;
    Ok(())
}

/// A table from message name to "decode and print": how a test reaches every generated type.
fn printers(messages: &[MessageDescriptor]) -> Result<String> {
    let mut out = String::from("&[\n");
    for message in messages {
        writeln!(out, "    ({:?}, |bytes| print::<crate::{}>(bytes)),", message.full_name(), rust_path(message)?)?;
    }
    out.push_str("]\n");
    Ok(out)
}

/// What `calls/wire.rs` needs to read any message of a unary call from its bytes.
fn calls(pool: &DescriptorPool, secret: &ExtensionDescriptor) -> Result<String> {
    let unary = |service: &ServiceDescriptor| {
        service
            .methods()
            .filter(|method| !method.is_server_streaming() && !method.is_client_streaming())
            .collect::<Vec<_>>()
    };
    let mut messages: Vec<MessageDescriptor> = Vec::new();
    let mut ahead: Vec<MessageDescriptor> = pool
        .services()
        .flat_map(|service| unary(&service))
        .flat_map(|method| [method.input(), method.output()])
        .collect();
    while let Some(message) = ahead.pop() {
        if !messages.contains(&message) {
            let nested = message.fields().filter(|field| !field.is_map()).filter_map(|field| match field.kind() {
                Kind::Message(nested) => Some(nested),
                _ => None,
            });
            ahead.extend(nested);
            messages.push(message);
        }
    }
    let place = |wanted: &MessageDescriptor| {
        let found = messages.iter().position(|message| message.full_name() == wanted.full_name());
        found.ok_or_else(|| format!("{} is not in the pool", wanted.full_name()))
    };
    let mut out = String::from("pub(super) static METHODS: &[(&str, usize, usize)] = &[\n");
    for service in pool.services() {
        for method in unary(&service) {
            let (input, output) = (place(&method.input())?, place(&method.output())?);
            writeln!(out, "    (\"/{}/{}\", {input}, {output}),", service.full_name(), method.name())?;
        }
    }
    out.push_str("];\npub(super) static MESSAGES: &[&[Field]] = &[\n");
    for message in &messages {
        writeln!(out, "    // {}\n    &[", message.full_name())?;
        for field in message.fields() {
            let (number, name, repeated) = (field.number(), field.name(), field.is_list());
            // CSI wants mount flags kept from others too, though it does not mark them.
            let hidden = is_secret(&field, secret) || name == "mount_flags";
            let shape = match (hidden, field.kind()) {
                (true, _) => "Shape::Secret".to_owned(),
                (false, Kind::Message(entry)) if field.is_map() => {
                    let value = entry.map_entry_value_field();
                    if entry.map_entry_key_field().kind() != Kind::String || value.kind() != Kind::String {
                        return Err(format!("{}: build.rs logs only maps of text; teach it", field.full_name()).into());
                    }
                    "Shape::Map".to_owned()
                }
                (false, Kind::Message(nested)) => format!("Shape::Message({})", place(&nested)?),
                (false, Kind::String) => "Shape::Text".to_owned(),
                (false, Kind::Bool) => "Shape::Bool".to_owned(),
                (false, Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64) => "Shape::Number".to_owned(),
                (false, Kind::Enum(names)) => {
                    let names: Vec<_> = names.values().map(|value| (value.number(), value.name().to_owned())).collect();
                    format!("Shape::Enum(&{names:?})")
                }
                (false, other) => {
                    return Err(format!("{}: build.rs does not log {other:?}; teach it", field.full_name()).into());
                }
            };
            writeln!(
                out,
                "        Field {{ number: {number}, name: {name:?}, repeated: {repeated}, shape: {shape} }},"
            )?;
        }
        writeln!(out, "    ],")?;
    }
    out.push_str("];\n");
    Ok(out)
}

fn module_of(message: &MessageDescriptor) -> Option<&'static str> {
    let package = message.parent_file().package_name().to_owned();
    PACKAGES.iter().find(|(name, _)| *name == package).map(|(_, module)| *module)
}

/// Where prost puts a message: nested ones live in a module named after their parent.
fn rust_path(message: &MessageDescriptor) -> Result<String> {
    let module = module_of(message).ok_or("message of an unknown package")?;
    let mut parts = vec![camel(message.name())];
    let mut parent = message.parent_message();
    while let Some(outer) = parent {
        parts.push(snake(outer.name()));
        parent = outer.parent_message();
    }
    parts.push(module.to_owned());
    parts.reverse();
    Ok(parts.join("::"))
}

/// Names are UpperCamelCase already, except acronyms such as `RPC`.
fn camel(name: &str) -> String {
    if name.chars().all(char::is_uppercase) {
        format!("{}{}", &name[..1], name[1..].to_lowercase())
    } else {
        name.into()
    }
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in camel(name).chars().enumerate() {
        if i > 0 && c.is_uppercase() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}
