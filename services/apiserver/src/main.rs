use clap::Parser as _;

/// A server that answers thousands of requests in a second spends a fifth of its time in the C library's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut words = std::env::args_os();
    match words.nth(1) {
        Some(word) if word == "healthcheck" => {
            apiserver::Healthcheck::parse_from(std::iter::once(word).chain(words)).run().await
        }
        _ => apiserver::Args::parse().run().await,
    }
}
